"""Rewrite strategies: one object each, which defines how the rows of a group become new files.

A ``Strategy`` knows its name, which options it takes, the order it gives to the rows of a group (or none), and whether
the bytes of row groups may be copied without decoding them. Planning and running ask the object; no other module
compares strategy names.

Rule: a strategy changes the order of rows and nothing else. Which files are rewritten, how they are grouped, which
deletes are applied and how groups are committed is the same for all of them. Fail-safe: ``run`` counts the rows that
were read and written for every group and refuses a group in which they differ, regardless of its strategy.

To add a strategy, write one module with an instance of ``Strategy`` (or of a subclass that overrides ``sort_order`` or
``row_order``) and add it to the ``register`` call in ``registry``. ``tests/unit/test_rewrite_strategies.py`` adds a toy
strategy this way.

Modules in reading order:

- ``base``: ``Strategy``, ``RowOrder`` (sorting in memory and in ranges on disk), parsing of ``--by``;
- ``binpack``, ``stitch``, ``sort``: strategies that keep the order of rows or sort them;
- ``curves``: what space-filling curves share; ``zorder``, ``hilbert``: the two curves;
- ``registry``: strategies by name.

Imported by ``rewrite.plan``, ``rewrite.run`` and ``audit`` (which estimates layouts).
"""
