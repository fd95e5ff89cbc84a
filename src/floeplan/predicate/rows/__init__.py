"""Evaluate predicates and SQL expressions on Arrow rows, with the results of Spark in ANSI mode.

Pruning decides from statistics; this package decides row by row: for the rows of kept files, for the rows a DELETE or
UPDATE matches, and for the values that SET and INSERT assign.

Rule: the value on every row is Spark's, NULL included. AND, OR, CASE, IF and COALESCE evaluate later operands only on
the rows that reach them. Time zones are UTC.

Fail-safe: a function outside the supported set, or a case in which Arrow's result could differ from Spark's, raises
``UnsupportedError`` and the caller leaves the work to Spark. An overflow or a malformed value in a row raises
``EvaluationError``, in the expression itself ``BadInputError``. No row is guessed.

Modules in reading order:

* ``evaluate``: the IR on a table (``evaluate_rows``, ``matching_mask``, ``filter_rows``), SQL expressions (opaque
  pieces, assigned values) on rows, and Spark's store assignment.
* ``arrow_columns``: columns by field id, in a form that compares exactly with literals.
* ``nodes``: how each node of sqlglot's tree becomes a vector.
* ``functions``: arithmetic, comparisons and functions on vectors; ``variant_get``: fields of variants.
* ``types``: one Arrow type per Spark type; casts and common types; expressions in error messages.

Imported by ``floeplan.predicate.sql_compiler``, which folds constants with it, and by every package that reads or
writes rows. Imports no other part of Floeplan than ``floeplan.predicate``.
"""
