"""Decoded manifest entries on local disk.

Rule: manifests never change, so a segment of decoded columns stays valid; it is found by manifest path and length.
Fail-safe: the cache is never required. A segment that is damaged, or was written by another version, is ignored and
its manifests are decoded again.

- ``store``: ``EntriesCache``, which reads entries through a folder of segments and limits its size.
- ``segment``: one file of columns with checksums.

Imported by ``floeplan.snapshot.reader`` and the incremental scan.
"""
