"""A merge joined by Spark: for expressions only Spark can evaluate, and for sources too large to send to every task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from floeplan.dml.assign import Assignments
from floeplan.dml.merge.clauses import Clauses, MergeStatement, When, WhenText
from floeplan.dml.merge.condition import MergeNames, is_source, qualified_text
from floeplan.dml.spark_rows import FILE, FoundRows, SparkClause, TargetRows, apply_clauses, first_clause, in_utc
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SOURCE = "_fp_source"


@dataclass(frozen=True, slots=True)
class SparkMerge:
    """One merge with its clauses numbered: matched, not matched by source, not matched."""

    merge: MergeStatement
    clauses: Clauses
    names: MergeNames
    on: str
    fields: frozenset[int]
    """The fields, of both sides, that the condition and the clauses name."""

    def run(self, spark: SparkSession, source: DataFrame, rows: TargetRows, target: WriteTarget) -> FoundRows:
        """Join, and write the new rows in tasks."""
        of_target = [field_id for field_id in self.fields if not is_source(field_id)]
        with in_utc(spark):
            joined = self._joined(rows.frame(spark, of_target), source)
            return apply_clauses(joined, self._clause(), self._numbered(), rows, target)

    def _joined(self, target: DataFrame, source: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        left = target.alias(self.names.target_qualifiers[0])
        right = source.withColumn(_SOURCE, functions.lit(True)).alias(self.names.source_qualifiers[0])
        kinds = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "full"}
        how = kinds[bool(self.merge.by_source), bool(self.merge.not_matched)]
        return left.join(right, functions.expr(qualified_text(self.on, self.names)), how)

    def _clause(self) -> Column:
        from pyspark.sql import functions

        matched, by_source, not_matched = self._texts()
        in_target, in_source = functions.col(FILE).isNotNull(), functions.col(_SOURCE).isNotNull()
        return (
            functions.when(in_target & in_source, first_clause(matched))
            .when(in_target, first_clause(by_source))
            .otherwise(first_clause(not_matched))
        )

    @property
    def _of_target(self) -> MergeNames:
        return replace(self.names, source=Schema())

    @property
    def _of_source(self) -> MergeNames:
        return replace(self.names, schema=Schema())

    def _texts(self) -> list[list[tuple[int, str | None]]]:
        """The conditions of each kind, numbered over all of them."""
        found, number = [], 0
        kinds = (self.merge.matched, self.names), (self.merge.by_source, self._of_target)
        for whens, names in (*kinds, (self.merge.not_matched, self._of_source)):
            found.append([(number + at, _condition(when, names)) for at, when in enumerate(whens)])
            number += len(whens)
        return found

    def _numbered(self) -> list[SparkClause]:
        only_delete = len(self.merge.matched) == 1 and self.clauses.matched[0] == When()
        return [
            *_clauses(self.clauses.matched, self.names, single=not only_delete),
            *_clauses(self.clauses.by_source, self._of_target),
            *_clauses(self.clauses.not_matched, self._of_source, inserts=True),
        ]


def _condition(when: WhenText, names: MergeNames) -> str | None:
    return None if when.condition is None else qualified_text(when.condition, names)


def _clauses(
    whens: Sequence[When], names: MergeNames, *, single: bool = True, inserts: bool = False
) -> list[SparkClause]:
    return [SparkClause(_qualified(when.assignments, names), inserts, single) for when in whens]


def _qualified(assignments: Assignments | None, names: MergeNames) -> Assignments | None:
    return None if assignments is None else assignments.map_text(lambda text: qualified_text(text, names))
