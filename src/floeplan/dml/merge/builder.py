"""MERGE: join the rows of a source with the table; update or delete matched rows, insert the others.

::

    fp.merge(table, source, on="target.id = source.id")
      .when_matched_delete("source.gone")
      .when_matched_update({"v": "source.v"})
      .when_not_matched_insert()
      .execute()

Clauses of one kind are evaluated in the order given, and the first whose condition holds applies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floeplan.dml.assign import statement_timestamp, with_timestamp
from floeplan.dml.commit import DmlResult
from floeplan.dml.merge.compile import SOURCE_QUALIFIERS, TARGET_QUALIFIERS, MergeStatement, WhenText
from floeplan.dml.merge.run import plan_merge, run_merge
from floeplan.dml.target import Command, DmlTarget, Mode, resolve
from floeplan.errors import BadInputError
from floeplan.scan.plan import ScanPlan
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    trust_lists: bool = False,
    allow_late_equality_deletes: bool = False,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
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
        trust_lists: Change rows even when the manifest list has fewer files than the snapshot summary counts.
        allow_late_equality_deletes: Move rows to the default spec even when a writer may go on adding equality deletes
            under their old one.
        summary: Further properties of the snapshot.
        options: How the commit is retried.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """
    qualifiers = (
        TARGET_QUALIFIERS if target_alias is None else (target_alias,),
        SOURCE_QUALIFIERS if source_alias is None else (source_alias,),
    )
    arguments = {
        "branch": branch,
        "mode": mode,
        "isolation": isolation,
        "trust_lists": trust_lists,
        "allow_late_equality_deletes": allow_late_equality_deletes,
        "catalog": catalog,
    }
    return Merge(table, source, on, spark, case_sensitive, qualifiers, arguments, summary or {}, options)


@dataclass(frozen=True, slots=True)
class Merge(MergeStatement):
    """A merge under construction; every method returns a new one."""

    def when_matched_update(self, set: Mapping[str, object] | None = None, condition: str | None = None) -> Merge:
        """Update matched rows; every column from the source when ``set`` is not given."""
        return replace(self, matched=(*self.matched, WhenText(condition, set)))

    def when_matched_delete(self, condition: str | None = None) -> Merge:
        """Delete matched rows."""
        return replace(self, matched=(*self.matched, WhenText(condition, deletes=True)))

    def when_not_matched_insert(
        self, values: Mapping[str, object] | None = None, condition: str | None = None
    ) -> Merge:
        """Insert source rows that match no row; every column from the source when ``values`` is not given."""
        return replace(self, not_matched=(*self.not_matched, WhenText(condition, values)))

    def when_not_matched_by_source_update(self, set: Mapping[str, object], condition: str | None = None) -> Merge:
        """Update rows that no source row matches."""
        return replace(self, by_source=(*self.by_source, WhenText(condition, set)))

    def when_not_matched_by_source_delete(self, condition: str | None = None) -> Merge:
        """Delete rows that no source row matches."""
        return replace(self, by_source=(*self.by_source, WhenText(condition, deletes=True)))

    def execute(self) -> DmlResult:
        """Merge and commit.

        Raises:
            BadInputError: An unknown column, a value that does not fit, no clause, or several source rows that would
                change one row. Nothing is committed.
        """
        return run_merge(*self._resolved())

    def plan(self) -> ScanPlan:
        """The files that the merge would read, after all checks that need no row of the table; nothing is written.

        Raises:
            BadInputError: As ``execute``.
        """
        return plan_merge(*self._resolved()).plan

    def _resolved(self) -> tuple[DmlTarget, MergeStatement]:
        """The newest table and the merge, with ``current_timestamp()`` fixed."""
        if not (self.matched or self.not_matched or self.by_source):
            raise BadInputError("a merge needs at least one clause, such as when_matched_update()")
        target = resolve(self.table, Command.MERGE, **self.arguments)
        timestamp = statement_timestamp()

        def fixed(whens: tuple[WhenText, ...]) -> tuple[WhenText, ...]:
            """The clauses with ``current_timestamp()`` and related functions as literals."""
            return tuple(
                replace(
                    when,
                    condition=with_timestamp(when.condition, timestamp),
                    values=when.values and {name: with_timestamp(v, timestamp) for name, v in when.values.items()},
                )
                for when in whens
            )

        statement = replace(
            self,
            on=with_timestamp(self.on, timestamp),
            matched=fixed(self.matched),
            not_matched=fixed(self.not_matched),
            by_source=fixed(self.by_source),
        )
        return target, statement
