"""The demonstration: the history of a git repository as a feed, and an index of it that is compared with git.

In the order of the data: ``history`` opens a repository (``git`` runs the program, ``standard_library`` is for where
there is no history) and gives ``changes``; ``producer`` writes them as ``jsonlines``; ``job`` is what Spark makes of
these; ``server`` is the process that it writes to, and ``interruption`` kills it; ``comparison`` and ``search`` look at
the index. ``run`` holds it all together, ``command`` is how it is called, and ``report`` what it prints.
"""
