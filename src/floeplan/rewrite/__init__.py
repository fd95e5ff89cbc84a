"""Rewriting data files: compaction, sorting, clustering, and moving files to another partition spec.

``rewrite_data_files`` plans which files to rewrite, rewrites them group by group, and commits the groups.
``upgrade_spec`` moves files to another spec by metadata alone where it can, and rewrites the rest.

Rule: a rewrite never changes the rows of a table, regardless of concurrent commits. Groups are independent: any
subset can be committed. Fail-safe: a group that cannot be rewritten or committed safely stays unchanged and is
reported.

Packages in reading order:

- ``plan``: which files, in which groups, and why;
- ``strategies``: the order of rows, one object per strategy;
- ``run``: rewriting groups in this process or on Spark;
- ``pages``: copying and joining encoded Parquet pages;
- ``commit_groups``: commits of some groups, with retries; ``carry_deletes``: concurrent deletes of their files;
- ``spec_upgrade``: moving files to another spec, and repairing misplaced deletes;
- ``execute``: ``rewrite_data_files``: plan, run and commit; ``progress``: its progress reports.

Imported by ``maintenance``, ``audit``, ``explorer`` and ``cli``.
"""
