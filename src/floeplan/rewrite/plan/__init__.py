"""Planning a rewrite: which data files, in which groups, into what, and why.

Rule: planning reads metadata only, and the same table and options give the same groups with the same ids. Fail-safe: a
file for which a filter cannot be evaluated is included with a warning (``strict`` refuses it); a manifest list that may
be truncated is refused, because rows whose deletes it lost would be written back (``trust_lists`` overrides).

Modules in reading order:

- ``options``: Iceberg's options and Floeplan's own;
- ``planner``: the nine steps;
- ``filter``: ``partition_filter`` and ``where`` over all specs;
- ``candidates``: reasons to rewrite a file, file sizes, and the partition of a file under the output spec;
- ``groups``: packing, dropping and ordering groups;
- ``ranges``: groups that become several Spark tasks, and how their rows reach them;
- ``model``: the plan, the run of a ``rewrite-all`` that it continues, and what a rewrite did.

Imported by ``rewrite.run``, ``rewrite.commit_groups``, ``rewrite.spec_upgrade``,
``maintenance`` and everything above.
"""
