"""SQL statements that change a table, in Spark's dialect.

The package is not called ``sql`` because ``floeplan.sql`` is the public function.

``fp.sql`` and ``floeplan sql`` take INSERT, DELETE, UPDATE, MERGE and ALTER TABLE … ADD/DROP/REPLACE PARTITION FIELD as
text. This package parses a statement, resolves its tables, and calls the functions of ``dml`` and ``transaction`` that
make the change; it changes nothing itself.

Rule: sqlglot decides which clauses a statement has; expressions and queries keep their exact source text, because they
are evaluated later, by Arrow or by Spark.

Fail-safe: a clause that is not understood is refused, and nothing is read or written before the whole statement is
parsed.

Modules in reading order:

- ``statements``: the parsed statements, as frozen dataclasses.
- ``tokens``: the tokens of a statement, the text between them, and the qualifiers in that text.
- ``outline``: a statement with each expression as one token, parsed by sqlglot.
- ``parse``: sqlglot's AST to ``statements``; ALTER TABLE … PARTITION FIELD, which sqlglot does not parse.
- ``call``: CALL, the procedures of Iceberg; ``create``: CREATE TABLE, CREATE NAMESPACE and ``create_table``.
- ``relations``: tables of the catalog in queries, as temporary views of Spark.
- ``run``: runs a statement; ``sql`` is the public function.

Imported by ``audit``, ``explorer`` and ``cli``.
"""
