"""Helpers that several test modules, or other processes, import.

- ``tables``: small tables written by PyIceberg, by Floeplan or by hand; ``explorer`` and ``scan_reports`` add to them
- ``compiled``: predicates compiled for a schema with a column of every type
- ``oracles``: random rows, predicates, statistics and histories, and their slow, obvious evaluation
- ``parquet``: files of every writer, footers made by hand, properties that copying must preserve
- ``spark``: the catalog that Spark and PyIceberg share, the matrix of evolved tables, Iceberg Java
- ``servers``: PostgreSQL, REST catalog, S3, Spark clusters; each is a process that ends with its context
- ``faults``: proxies, full filesystems and killed processes
- ``fuzz``: damaged input
- ``documents``: code blocks of the docs
"""
