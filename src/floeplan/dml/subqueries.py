"""Conditions with subqueries, which only Spark can evaluate.

Rule: Spark decides about every row of the files that may match. Fail-safe: files are planned with what the condition
implies without its subqueries, so that whatever these find, no file that could matter is left out; and no file is
dropped by metadata alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from floeplan.predicate.compile import PredicateSource
from floeplan.predicate.sql_skeleton import tokens_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SubqueryCondition:
    """A condition as Spark reads it.

    Attributes:
        text: The condition; its subqueries name views of the session.
        implied: What every matching row satisfies, without subqueries.
        alias: What the condition calls the table.
    """

    text: str
    implied: str
    alias: str

    def columns(self, schema: Schema) -> set[int]:
        """The columns that the condition may name; those of other tables with the same names among them."""
        words = {token.text.lower() for token in tokens_of(self.text)}
        return {field.field_id for field in schema.fields if field.name.lower() in words}

    def matching(self, frame: DataFrame) -> DataFrame:
        """The rows of a frame for which the condition is TRUE."""
        from pyspark.sql import functions

        return frame.alias(self.alias).where(functions.expr(self.text))


def planned(where: PredicateSource | SubqueryCondition) -> PredicateSource:
    """What files are chosen by."""
    return where.implied if isinstance(where, SubqueryCondition) else where
