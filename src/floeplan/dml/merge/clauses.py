"""The clauses of a merge: as given, and compiled over the columns each kind of clause may name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from floeplan.dml.assign import Assignments, compile_assignments
from floeplan.dml.merge.condition import MergeNames
from floeplan.errors import BadInputError, UnknownColumnError
from floeplan.predicate.ir import TRUE, IrExpr, path_text
from floeplan.predicate.sql_compiler import compile_sql
from floeplan.transaction.catalog_commit import CommitOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class WhenText:
    """A clause as given: SET or VALUES, where ``None`` means all columns; ``deletes`` for a DELETE."""

    condition: str | None
    values: Mapping[str, object] | None = None
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class MergeStatement:
    """Everything a merge was given."""

    table: Table | str | os.PathLike[str]
    source: object
    on: str | Sequence[str]
    spark: SparkSession | None
    case_sensitive: bool
    qualifiers: tuple[Sequence[str], Sequence[str]]
    arguments: Mapping[str, Any]
    summary: Mapping[str, str]
    options: CommitOptions | None
    matched: tuple[WhenText, ...] = ()
    not_matched: tuple[WhenText, ...] = ()
    by_source: tuple[WhenText, ...] = ()


@dataclass(frozen=True, slots=True)
class When:
    """A compiled clause; without assignments it deletes."""

    condition: IrExpr = TRUE
    assignments: Assignments | None = None


@dataclass(frozen=True, slots=True)
class Clauses:
    """All clauses of a merge, compiled over the columns each kind may name."""

    matched: tuple[When, ...]
    not_matched: tuple[When, ...]
    by_source: tuple[When, ...]

    @property
    def all(self) -> tuple[When, ...]:
        """Every clause."""
        return (*self.matched, *self.not_matched, *self.by_source)


def compile_clauses(merge: MergeStatement, schema: Schema, source: Schema) -> Clauses:
    """Compile the clauses: matched ones may name both sides, inserts the source, the others the target."""
    nothing = Schema()

    def names(of_target: Schema, of_source: Schema) -> MergeNames:
        return MergeNames(of_target, merge.case_sensitive, of_source, *merge.qualifiers)

    def compiled(whens: tuple[WhenText, ...], seen: MergeNames) -> tuple[When, ...]:
        return tuple(_when(when, schema, source, seen) for when in whens)

    return Clauses(
        compiled(merge.matched, names(schema, source)),
        compiled(merge.not_matched, names(nothing, source)),
        compiled(merge.by_source, names(schema, nothing)),
    )


def _when(when: WhenText, schema: Schema, source: Schema, names: MergeNames) -> When:
    condition = TRUE if when.condition is None else compile_sql(when.condition, names)[0]
    if when.deletes:
        return When(condition)
    values = all_columns(schema, source, names) if when.values is None else when.values
    return When(condition, compile_assignments(values, schema, names))


def all_columns(schema: Schema, source: Schema, names: MergeNames) -> dict[str, object]:
    """``*``: each column of the table from the source column of the same name."""
    fold: Callable[[str], str] = str if names.case_sensitive else str.lower
    known = {fold(column.name): column.name for column in source.fields}
    missing = [column.name for column in schema.fields if fold(column.name) not in known]
    if missing:
        raise UnknownColumnError(
            f"the source has no column {missing[0]}; name the columns to set instead of taking all",
            context={"column": missing[0]},
        )
    qualifier = names.source_qualifiers[0]
    return {path_text((c.name,)): f"{qualifier}.{path_text((known[fold(c.name)],))}" for c in schema.fields}


def condition_text(on: str | Sequence[str], names: MergeNames) -> str:
    """ON as SQL text; a column name stands for its equality on both sides."""
    given = [on] if isinstance(on, str) else list(on)
    both = [{column.name for column in side.fields} for side in (names.schema, names.source)]
    if isinstance(on, str) and not all(on in side for side in both):
        return on
    if not given:
        raise BadInputError("a merge needs a condition; name the columns that must be equal")
    target, source = names.target_qualifiers[0], names.source_qualifiers[0]
    return " AND ".join(f"{target}.{path_text((name,))} = {source}.{path_text((name,))}" for name in given)
