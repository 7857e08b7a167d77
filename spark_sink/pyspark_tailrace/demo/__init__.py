"""The demonstration: feeds the history of a git repository, and compares an index of the feed with git.

In the order of the data: ``history`` opens a repository and yields its ``changes``. ``git`` runs the program, and
``standard_library`` is the input without a history. ``producer`` writes the changes as ``jsonlines``, and ``job`` is
the Spark job that reads these files. ``server`` is a process that Spark writes to, and ``interruption`` kills one.
``comparison`` and ``search`` read the index. ``run`` runs all of them, ``command`` is the command line, and ``report``
makes the printed texts.
"""
