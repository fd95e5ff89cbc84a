"""Spark with Iceberg Java: the shared catalog, the matrix of evolved tables, and the tables of the service tests."""
