"""MERGE: join a source with the table, then update, delete and insert rows in one commit.

Rule: conjuncts ``target.a = source.b`` of the ON condition are keys. The source is indexed by its keys and sent to the
tasks, which join it with whole columns of the files that may hold those keys. Spark joins when Arrow cannot evaluate an
expression or the source is too large to send.

Fail-safe: a target row that two source rows would change is an error, and nothing is committed.

Modules in reading order: ``builder`` (``merge`` and its fluent clauses), ``run`` (plans, joins in tasks or on Spark,
inserts, commits), ``compile`` (the statement, its names, clauses and the keys of the ON condition), ``join`` (the key
index and the decision for one file).

``builder`` is imported from outside, and ``WhenText`` of ``compile`` by ``sql_text``; the rest is internal.
"""
