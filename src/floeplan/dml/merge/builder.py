"""MERGE: rows of a source are joined with the table; what met is updated or deleted, what is new is inserted.

::

    fp.merge(table, source, on="target.id = source.id")
      .when_matched_delete("source.gone")
      .when_matched_update({"v": "source.v"})
      .when_not_matched_insert()
      .execute()

Of each kind the clauses are asked in the order they were given, and the first whose condition holds applies. The source
is indexed by its key once and sent to the tasks, which ask it with whole columns; files that hold none of its keys are
not opened. What Arrow cannot evaluate, and sources beyond ``SHIPPED_ROWS``, are joined by Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from floeplan.dml.assign import Assignments, compile_assignments
from floeplan.dml.merge.condition import SOURCE_QUALIFIERS, TARGET_QUALIFIERS, MergeNames
from floeplan.dml.outcome import DmlResult
from floeplan.dml.statement import all_at_moment, statement_timestamp, with_timestamp
from floeplan.dml.target import Command, Mode, resolve
from floeplan.errors import BadInputError, UnknownColumnError
from floeplan.predicate.ir import TRUE, IrExpr, path_text
from floeplan.predicate.sql.compiler import compile_sql
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHIPPED_ROWS, SHIPPED_BYTES = 5_000_000, 512 * 2**20
"""Larger sources are not sent to every task but joined by Spark, when there is a session."""


def merge(
    table: Table | str | os.PathLike[str],
    source: object,
    on: str | Sequence[str],
    *,
    spark: SparkSession | None = None,
    branch: str | None = None,
    mode: Mode | str | None = None,
    isolation: IsolationLevel | str | None = None,
    case_sensitive: bool = True,
    target_alias: str | None = None,
    source_alias: str | None = None,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
) -> Merge:
    """Begin a merge; add clauses and ``execute()`` it.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        source: Arrow data, a Spark DataFrame, a table or its name, or paths of Parquet files.
        on: A condition over ``target.…`` and ``source.…`` columns, or the names of columns that must be equal.
        spark: A session to work with; a DataFrame brings its own.
        branch: The branch to change instead of ``main``.
        mode: ``copy-on-write`` or ``merge-on-read``; the table's ``write.merge.mode`` when not given.
        isolation: ``serializable`` or ``snapshot``; the table's ``write.merge.isolation-level`` when not given.
        case_sensitive: Whether column names must match exactly.
        target_alias: Another qualifier for columns of the table, instead of ``target`` and ``t``.
        source_alias: Another qualifier for columns of the source, instead of ``source`` and ``s``.
        summary: Further properties of the snapshot.
        options: How the commit is retried.
    """
    qualifiers = (
        TARGET_QUALIFIERS if target_alias is None else (target_alias,),
        SOURCE_QUALIFIERS if source_alias is None else (source_alias,),
    )
    arguments = {"branch": branch, "mode": mode, "isolation": isolation}
    return Merge(table, source, on, spark, case_sensitive, qualifiers, arguments, summary or {}, options)


@dataclass(frozen=True, slots=True)
class WhenText:
    """A clause as it was given: SET or VALUES, ``None`` for all columns; ``deletes`` when there is none of them."""

    condition: str | None
    values: Mapping[str, object] | None = None
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge that is being put together; every clause gives a new one."""

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

    def when_matched_update(self, set: Mapping[str, object] | None = None, condition: str | None = None) -> Merge:
        """Give new values to rows that met a source row; every column from the source's when ``set`` is not given."""
        return replace(self, matched=(*self.matched, WhenText(condition, set)))

    def when_matched_delete(self, condition: str | None = None) -> Merge:
        """Delete rows that met a source row."""
        return replace(self, matched=(*self.matched, WhenText(condition, deletes=True)))

    def when_not_matched_insert(
        self, values: Mapping[str, object] | None = None, condition: str | None = None
    ) -> Merge:
        """Insert source rows that met no row; every column from the source's when ``values`` is not given."""
        return replace(self, not_matched=(*self.not_matched, WhenText(condition, values)))

    def when_not_matched_by_source_update(self, set: Mapping[str, object], condition: str | None = None) -> Merge:
        """Give new values to rows that met no source row."""
        return replace(self, by_source=(*self.by_source, WhenText(condition, set)))

    def when_not_matched_by_source_delete(self, condition: str | None = None) -> Merge:
        """Delete rows that met no source row."""
        return replace(self, by_source=(*self.by_source, WhenText(condition, deletes=True)))

    def execute(self) -> DmlResult:
        """Merge and commit.

        Raises:
            BadInputError: An unknown column, a value that does not fit, no clause, or several source rows that would
                change one row. Nothing is committed.
        """
        from floeplan.dml.merge.run import Merging

        if not (self.matched or self.not_matched or self.by_source):
            raise BadInputError("a merge without a clause does nothing; say what to do when rows match or do not")
        target = resolve(self.table, Command.MERGE, **self.arguments)
        return Merging(target, self._at(statement_timestamp())).run()

    def _at(self, moment: datetime) -> Merge:
        """The same merge with the moment it runs at written out."""

        def fixed(whens: tuple[WhenText, ...]) -> tuple[WhenText, ...]:
            return tuple(
                replace(
                    when,
                    condition=with_timestamp(when.condition, moment),
                    values=None if when.values is None else all_at_moment(when.values, moment),
                )
                for when in whens
            )

        return replace(
            self,
            on=with_timestamp(self.on, moment),
            matched=fixed(self.matched),
            not_matched=fixed(self.not_matched),
            by_source=fixed(self.by_source),
        )


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


def compile_clauses(merge: Merge, schema: Schema, source: Schema) -> Clauses:
    """Compile the clauses: matched ones see both sides, inserts the source, the others the target."""
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
    """``*``: every column of the table from the source column of its name."""
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
    """ON as text; column names stand for their equality."""
    given = [on] if isinstance(on, str) else list(on)
    both = [{column.name for column in side.fields} for side in (names.schema, names.source)]
    if isinstance(on, str) and not all(on in side for side in both):
        return on
    if not given:
        raise BadInputError("a merge needs a condition; name the columns that must be equal")
    target, source = names.target_qualifiers[0], names.source_qualifiers[0]
    return " AND ".join(f"{target}.{path_text((name,))} = {source}.{path_text((name,))}" for name in given)
