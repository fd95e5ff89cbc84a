"""The predicate algebra that every pruning level shares: one IR, one evaluator over statistics, one over rows.

**Contract.** A *container* is a manifest, a data file, a row group or a page. Pruning may drop a container only when no
row in it can match. A predicate is TRUE, FALSE or NULL on a row, and a row matches only if it is TRUE. From the
statistics of a container follows which of the three *may* occur in it (``stats.Tri``):

==============  =======================  =======  ======================================
TRUE may occur  FALSE or NULL may occur  state    a reader
==============  =======================  =======  ======================================
no              either                   FALSE    drops the container
yes             no                       TRUE     keeps it and need not evaluate any row
yes             yes                      UNKNOWN  keeps it and evaluates the residual
==============  =======================  =======  ======================================

Statistics may be loose, truncated, missing or wrong in known ways; each of these only adds a "may". Unknown keeps.

=======================  ======================================  =======  =====================================
predicate                container                               state    because
=======================  ======================================  =======  =====================================
``x > 10``               bounds 1 … 9, no NaN                    FALSE    no value is above 10
``x > 10``               bounds 11 … 20, 0 nulls                 TRUE     every row matches
``x > 10``               bounds 11 … 20, null count unknown      UNKNOWN  a null is not a match
``NOT (x > 10)``         bounds 1 … 9, some nulls                UNKNOWN  NOT of NULL is NULL
``x > 10``, x double     bounds 1 … 9, NaN count unknown         UNKNOWN  NaN is above every value, as in Spark
``x = 5 AND f(y) = 1``   bounds of x 7 … 9                       FALSE    one conjunct suffices
``x = 5 OR f(y) = 1``    bounds of x 7 … 9                       UNKNOWN  only rows can answer ``f(y) = 1``
=======================  ======================================  =======  =====================================

Fail-safe: a piece that no statistics can answer stays in the predicate as ``Opaque``; it is never dropped, only left
out of the *prunable* part, and it remains in the *residual* that is evaluated on rows.

Modules in reading order:

* ``ir``: the nodes and their row semantics; ``literals``: canonical values and how they are written.
* ``build``: constructors, negation, walking, weakening.
* ``stats``: statistics of many containers and three-valued answers about them; ``evaluate``: the evaluator.
* ``compile``: the entry point for all sources of predicates: SQL text, PyIceberg expressions, tuples.
* ``plain_sql``: plain comparisons from their text, without sqlglot.
* ``sql_parser``: SQL text as a tree of pieces, each piece as sqlglot's tree; ``sql_compiler``: from there to the IR.
* ``names``: columns by name; ``casts``: comparing a column with a literal of another type;
  ``spark_text``: Spark's text formats, intervals included.
* ``variants``: values at a path of a variant, and their bounds; ``geometries``: bounding boxes.
* ``rows``: evaluation on Arrow rows.

Any package may import it. It imports only ``floeplan.errors``, ``floeplan.text`` and ``floeplan.vectors``.
"""
