"""Partition specs: transforms, predicates on partition values, the union tuple, recovered values and partition keys.

A table whose spec has evolved holds files of several specs. This package expresses a predicate on columns as a
predicate on the partition values of each spec, so that files are pruned under the spec they were written with.

Rule: a lifted predicate is TRUE for every partition that may hold a matching row (``lift``); that *every* row of a
partition matches follows from the lifted negation (``union``). Partition fields are identified by field id, source
and transform, never by name or position alone (``union``).

Fail-safe: a transform that is unknown or does not accept its source, a source column that no schema has, and a source
whose type changed in an incompatible way lift nothing, so the files are kept. A partition value that column bounds do
not prove is not recovered.

Modules in reading order:

* ``transforms``: Iceberg's transforms on single values and on vectors, with murmur3 for buckets.
* ``fields``: partition fields with the types of their source columns over all schemas.
* ``lift``: projects one leaf onto one partition field: unchanged, by buckets, by ranges of integers, by prefixes.
* ``preimage``: conditions on a transform, as ``day(ts) = 19000``, with their equivalent on the source column.
* ``union``: whole predicates on all fields of a spec; one tuple type for the files of all specs.
* ``recover``: partition values under another spec, from column bounds.
* ``key``: the partition of a file as a key for grouping.
* ``evolution``: adding, dropping and renaming partition fields.

Imports ``floeplan.predicate``, ``floeplan.schemas`` and the modules below them. All packages that plan, write or
rewrite import it.
"""
