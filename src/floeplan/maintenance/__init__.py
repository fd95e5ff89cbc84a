"""Table maintenance: cluster manifests, merge delete files, expire snapshots, remove orphans, find and repair problems.

Rule: what deletes files (``expire``, ``orphans``) is a dry run by default. Fail-safe: a file is deleted only
when the metadata that the catalog has at that time does not refer to it; a manifest list that may be truncated is
refused.

- ``inspect``: what a table consists of;
- ``doctor``: problems and their fixes; ``partition_check``: partition values that are disproven; ``remedies``: what the
  commands it recommends would do; ``coarser_spec``: the spec for a table with too many small partitions;
- ``rewrite_manifests``: entries clustered by partition; ``rewrite_deletes``: position delete files merged;
- ``expire``: old snapshots, and the files that snapshots refer to; ``orphans``: unreferenced files.

Imported by ``audit``, ``fleet``, ``explorer`` and ``cli``.
"""
