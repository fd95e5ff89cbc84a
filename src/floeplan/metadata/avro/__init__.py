"""Avro container files to and from columns.

Rule: a schema is compiled once into a small program of integers; the program then runs over whole blocks. A field is
found by its Iceberg field id, never by name. Fields that are not requested are skipped without being built.
Fail-safe: every read is bounds-checked; bytes that do not follow the schema are an error with file and offset.

Reading order:

- ``program``: the instructions, and from a writer schema and the requested fields to a decode program.
- ``decoder``: header, blocks and codecs of a container file; runs programs with the kernel ``_avro_decode``.
- ``encoder``: the same for writing, with the kernel ``_avro_encode``.
- ``_avro_fallback``: both kernels in plain Python, for executors without the wheel.

Imported by ``metadata.manifests``, and by ``formats`` for data files in Avro.
"""
