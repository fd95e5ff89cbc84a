"""SQL statements in Spark's dialect: queries, and changes of a table.

The package is not called ``sql`` because ``floeplan.sql`` is the public function.

``fp.sql`` and ``floeplan sql`` take queries, INSERT, DELETE, UPDATE, MERGE and ALTER TABLE … ADD/DROP/REPLACE PARTITION
FIELD as text. This package parses a statement, resolves its tables, and calls the functions of ``scan`` and ``spark``
that read them, and those of ``dml`` and ``transaction`` that make the change; it changes nothing itself.

Rule: sqlglot decides which clauses a change has; expressions and queries keep their exact source text, because they are
evaluated later, by Arrow or by Spark.

Fail-safe: a clause that is not understood is refused, and nothing is read or written before the whole statement is
parsed. A query is Spark's; only the tables of the catalog in it are replaced.

Modules in reading order:

- ``statements``: the parsed statements, as frozen dataclasses.
- ``tokens``: the tokens of a statement, the text between them, and the qualifiers in that text.
- ``outline``: a statement with each expression as one token, parsed by sqlglot.
- ``parse``: sqlglot's AST to ``statements``; ALTER TABLE … PARTITION FIELD, which sqlglot does not parse.
- ``call``: CALL, the procedures of Iceberg; ``create``: CREATE TABLE, CREATE NAMESPACE and ``create_table``.
- ``relations``: tables of the catalog in queries, their snapshots and metadata tables.
- ``attach``: ``fp.attach``, the tables of a namespace as views of a session.
- ``join_pruning``: plans the tables of a query, large ones by the join keys of small ones too.
- ``queries``: plans the tables of a query with its own predicates and columns, and lets Spark run it.
- ``run``: runs a statement; ``sql`` is the public function.

Imported by ``audit``, ``explorer`` and ``cli``.
"""
