"""Committing: one change becomes one snapshot of a branch, or nothing happens.

A ``SnapshotChange`` names the files a snapshot adds and removes, a ``ConflictValidation`` what must not have happened
since it was planned, ``CommitOptions`` how to retry; ``commit_change`` returns a ``CommitResult``. Every change of
table metadata (branches, partition evolution, expiry) is a ``PendingUpdate`` that goes through ``CatalogCommit``.

Rule: the snapshot id is chosen once, and every attempt is validated against, and based on, the newest head of the
branch. Manifests that need not change are listed as they are. Entries that are carried over keep their snapshot id and
sequence numbers, because those decide which deletes apply to which data.

Fail-safe: what cannot be evaluated is a conflict. A rejected commit is final only after the table was loaded to check
that it is not there. Files are deleted only when no snapshot can refer to them; when the commit state is unknown, they
stay.

Modules in reading order:

- ``change``: ``SnapshotChange``, ``ConflictValidation``, and the checks each command requires; what is wrong with a
  change on any head, and whether schema, specs and format still fit it.
- ``commit``: ``commit_change``, from the change to the committed snapshot.
- ``catalog_commit``: ``CatalogCommit``, retries and the commit state check; ``CommitOptions``.
- ``validation``: the snapshots committed since planning, and the conflict checks against them.
- ``equality_writers``: live writers of equality deletes that rows must not be moved away from.
- ``producer``: manifests, manifest list, snapshot and snapshot summary of a change.
- ``manifests``: writing manifests per spec, merging small ones; ``group_files_by_spec``, ``find_compatible_schema``.
- ``filter_manifests``: removing files from the manifests that hold them; ``dangling``: delete files that apply to no
  data file.
- ``metadata_json``: table metadata files where PyIceberg writes them.
- ``move_entries``: a ``replace`` snapshot that moves entries between manifests.
- ``refs``, ``evolve_spec``, ``upgrade_format``, ``properties``: branches and tags, partition evolution, the format
  version, table properties.

May be imported by tasks, spark, dml, rewrite, maintenance and above; imports write, scan, snapshot, metadata and below.
"""
