"""Rewriting groups: what ``tasks.runner`` runs in this process or on Spark, each in the cheapest way that applies.

Rule: all live rows of a group, and no others, are in its new files; the number of rows read and written is compared for
every group. Fail-safe: a group that fails leaves no file behind and does not fail the others.

Modules in reading order:

- ``group``: a group as a task, an attempt at it, its result, and where each row went, for concurrent deletes;
- ``rewrite_group``: the groups of a plan as tasks; what a task does: copy row groups, join pages, or write rows;
- ``join_group``: a new file from encoded pages;
- ``write_group``: rows decoded, sorted and written; ``sorting``: in memory or on disk, encoded by
  several threads;
- ``ranges``: a large group sorted by several Spark tasks; ``range_task``: what these do; ``stored_map``: where their
  rows went, in files.

Imported by ``rewrite.commit_groups``, ``rewrite.execute``, ``rewrite.spec_upgrade`` and everything above ``rewrite``.
"""
