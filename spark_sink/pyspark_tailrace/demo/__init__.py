"""The demonstration: the history of a git repository as a feed, and an index of it that is compared with git.

``history`` opens a repository (``git`` runs the program, ``standard_library`` is for where there is no history),
``changes`` says what a change and its value look like, ``jsonlines`` writes changes as files for Spark.
"""
