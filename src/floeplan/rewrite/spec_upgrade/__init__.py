"""Moving files to another partition spec, by metadata alone where their partition is proven.

Rule: an entry moves only when its new partition is proven and the same deletes apply to it before and after. Fail-safe:
other files keep their spec, with a reason, or are rewritten; deletes that a concurrent writer records in the old
partition are found and repaired.

- ``upgrade``: ``upgrade_spec``;
- ``move``: which files can move, and why others cannot;
- ``entry_moves``: manifests in which moved entries are recorded; deletes that are not in the partition of their data
  file, and their repair;
- ``late_deletes``: equality deletes that were added under a spec after rows had moved out of it.

Imported by ``maintenance`` and everything above.
"""
