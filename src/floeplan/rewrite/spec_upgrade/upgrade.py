"""``upgrade_spec``: move old files to another partition spec, by metadata alone where their partition is proven.

Rule: one ``replace`` snapshot (or several, ``files_per_commit`` at a time) records the entries in the new spec; no data
file is opened or written. Files whose partition is not proven, or that a delete forbids to move, are rewritten:
their rows are partitioned by the transforms of the spec. ``metadata_only`` leaves them instead. Every head is planned
from scratch, so an interrupted run is continued by the next, and a second run finds nothing to do.

Fail-safe: a concurrent merge-on-read writer may commit its deletes under the old spec. The head is checked for such
deletes before the move, after it, and for ``grace_seconds`` more, and they are repaired; ``doctor --repair`` does the
same at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.catalog import load_table, refreshed
from floeplan.display import Displayed
from floeplan.errors import InvalidOptionError, UnknownSpecError
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.predicate.compile import PredicateSource, compile_predicate
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.rewrite.execute import run_rewrite
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.spec_upgrade.entry_moves import repair_deletes
from floeplan.rewrite.spec_upgrade.move import MoveStatus, SpecMove, plan_move
from floeplan.scan.model import PlanWarning
from floeplan.snapshot.reader import SnapshotReader
from floeplan.text import counted
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.equality_writers import refuse_live_writers, warn_of_equality_writers
from floeplan.transaction.move_entries import EntryMove, move_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CURRENT = "current"
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class UpgradeOptions:
    """Options of a spec upgrade.

    Attributes:
        to: The id of the spec, or ``current``.
        allow_coarser: Move files even if that drops partition information (day to month).
        files_per_commit: Maximum files per commit; all of them by default.
        grace_seconds: How long to check for deletes of concurrent writers after the last move: seconds or a timedelta.
        dry_run: Only report what would be done.
        metadata_only: Leave files that cannot be moved instead of rewriting them.
        where: Move only files of which every row provably matches; nothing is rewritten.
        trust_lists: Continue if a manifest list has fewer files than the snapshot summary counts.
        allow_late_equality_deletes: Move files out of a spec even when a writer may go on adding equality deletes
            under it.
    """

    to: int | str = CURRENT
    allow_coarser: bool = False
    files_per_commit: int | None = None
    grace_seconds: float | timedelta = 0.0
    dry_run: bool = False
    metadata_only: bool = False
    where: PredicateSource | None = None
    trust_lists: bool = False
    allow_late_equality_deletes: bool = False

    def __post_init__(self) -> None:
        if self.files_per_commit is not None and self.files_per_commit < 1:
            message = f"files_per_commit is {self.files_per_commit} but must be at least 1"
            raise InvalidOptionError(message, context={"value": self.files_per_commit})
        if self.grace.total_seconds() < 0:
            raise InvalidOptionError(
                f"grace_seconds is {self.grace_seconds} but must not be negative",
                context={"value": str(self.grace_seconds)},
            )

    @property
    def grace(self) -> timedelta:
        """``grace_seconds`` as a timedelta."""
        given = self.grace_seconds
        return given if isinstance(given, timedelta) else timedelta(seconds=given)


@dataclass(frozen=True, slots=True, repr=False)
class SpecUpgradeResult(Displayed):
    """The result of a spec upgrade.

    Attributes:
        target_spec_id: The target spec.
        files_total: Live data files.
        files_by_metadata: Files moved by metadata alone.
        files_by_rewrite: Files that were rewritten.
        files_left: Files that stay under another spec.
        reasons: How many files could not be moved for which reason, including those that were rewritten.
        deletes_carried: Delete files that moved with their data files.
        snapshot_ids: The committed snapshots, oldest first.
        notes: What changes for users of the table.
        dry_run: Whether nothing was changed.
    """

    target_spec_id: int
    files_total: int
    files_by_metadata: int
    files_by_rewrite: int
    files_left: int
    reasons: Mapping[str, int]
    deletes_carried: int
    snapshot_ids: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        found: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return found | {
            "reasons": dict(self.reasons),
            "snapshot_ids": list(self.snapshot_ids),
            "notes": list(self.notes),
        }


def upgrade_spec(
    table: Table | str,
    to: int | str = CURRENT,
    *,
    spark: SparkSession | None = None,
    branch: str = MAIN_BRANCH,
    options: UpgradeOptions | None = None,
    commit: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> SpecUpgradeResult:
    """Move the files of a branch to a partition spec.

    Args:
        table: The table, or its name.
        to: The id of the spec, or ``current``; taken from ``options`` if these are given.
        spark: A Spark session to rewrite on; by default rewrites in this process.
        branch: The branch to change.
        options: How it is done.
        commit: How snapshots are committed.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        UnknownSpecError: The table has no such spec.
        CommitConflictError: Other writers won every retry; what was committed before stays.
    """
    chosen = options or UpgradeOptions(to=to)
    loaded = load_table(table, catalog)
    if loaded is table and not isinstance(loaded, StaticTable):
        loaded = refreshed(loaded)  # the current spec, or the one that is named, may have been added since
    return _Upgrade(loaded, branch, chosen, commit or CommitOptions(), spark).run()


@dataclass(slots=True)
class _Upgrade:
    """One run; ``left`` is the last plan, of what could not be moved."""

    table: Table
    branch: str
    options: UpgradeOptions
    commit: CommitOptions
    spark: SparkSession | None
    moved: int = 0
    carried: int = 0
    rewritten: int = 0
    snapshot_ids: list[int] = field(default_factory=list)
    left: SpecMove | None = None
    writers: list[PlanWarning] = field(default_factory=list)

    def run(self) -> SpecUpgradeResult:
        spec_id = target_spec_id(self.table, self.options.to)
        head = SnapshotReader.of_branch(self.table, self.branch)
        specs = np.unique(head.manifests.spec_id[head.manifest_rows(DATA)]).tolist()
        self.writers = warn_of_equality_writers(head, specs, spec_id)
        if self.options.dry_run:
            planned = self._plan(head, spec_id)
            self._count(planned)
            self.rewritten = self._rewritable(planned)
            return self._result(planned)
        if not self.options.allow_late_equality_deletes:
            refuse_live_writers(self.writers)
        while self._move(spec_id):
            pass
        assert self.left is not None, "the last round found nothing to move"
        left = self.left
        if self._rewritable(left):
            self._rewrite(spec_id, left.coarser_specs)
        self._repair_late_deletes()
        return self._result(left)

    def _count(self, planned: SpecMove) -> None:
        self.moved += int(np.count_nonzero(planned.moved))
        self.carried += int(np.count_nonzero(planned.misplaced.is_misplaced))

    def _plan(self, head: SnapshotReader, spec_id: int) -> SpecMove:
        if not self.options.trust_lists:
            head.check_complete("deletes it does not list would no longer apply to moved or rewritten files")
        most = None if self.options.dry_run else self.options.files_per_commit
        where: IrExpr = TRUE
        if self.options.where is not None:
            where = compile_predicate(self.options.where, head.metadata.schema()).predicate
        return plan_move(head, spec_id, allow_coarser=self.options.allow_coarser, most_files=most, where=where)

    def _move(self, spec_id: int) -> bool:
        """Commit one move; false when nothing can be moved."""

        def decide(head: SnapshotReader) -> EntryMove | None:
            self.left = self._plan(head, spec_id)
            return self.left.entry_move()

        summary = {"floeplan.operation": "upgrade-spec", "floeplan.target-spec-id": str(spec_id)}
        done = move_entries(self.table, decide, branch=self.branch, summary=summary, options=self.commit)
        if done is None or self.left is None:
            return False
        self.table = done.table
        self.snapshot_ids.append(done.snapshot_id)
        self._count(self.left)
        return True

    def _rewritable(self, left: SpecMove) -> int:
        """How many files that cannot be moved are rewritten; not those that would lose partition information."""
        if self.options.metadata_only or self.options.where is not None:
            return 0
        return sum(files for reason, files in left.reasons().items() if reason != MoveStatus.COARSER_TARGET.label)

    def _rewrite(self, spec_id: int, leave_specs: frozenset[int]) -> None:
        options = RewriteOptions(
            spec=spec_id,
            min_file_size_bytes=0,
            delete_ratio_threshold=1.0,
            trust_lists=self.options.trust_lists,
            allow_late_equality_deletes=True,  # checked before the first file was moved
        )
        done = run_rewrite(
            self.table,
            options,
            spark=self.spark,
            branch=self.branch,
            cache=False,
            leave_specs=leave_specs,
            commit=self.commit,
        )
        self.rewritten = done.files_rewritten
        self.snapshot_ids += done.snapshot_ids

    def _repair_late_deletes(self) -> None:
        """Repair deletes that others committed for moved files: once, and again until ``grace_seconds`` have passed."""
        timing = self.commit.timing
        until = timing.clock() + self.options.grace.total_seconds()
        while True:
            repaired = repair_deletes(self.table, branch=self.branch, options=self.commit)
            self.carried += repaired.delete_files
            self.snapshot_ids += [] if repaired.snapshot_id is None else [repaired.snapshot_id]
            if timing.clock() >= until:
                return
            timing.sleep(min(_POLL_SECONDS, until - timing.clock()))

    def _result(self, last: SpecMove) -> SpecUpgradeResult:
        reasons = last.reasons()
        # What changes for users by what was done, and which option would move more files.
        counts = ((self.moved, "moved file"), (self.rewritten, "rewritten file"))
        done = " and the ".join(counted(number, noun) for number, noun in counts if number)
        notes = []
        if done:
            notes.append(f"a dynamic INSERT OVERWRITE will replace the {done}, which it kept before")
            notes += [warning.message for warning in self.writers]
        coarser = reasons.get(MoveStatus.COARSER_TARGET.label, 0)
        if coarser:
            notes.append(f"{counted(coarser, 'file')} would lose partition information: allow-coarser moves them too")
        return SpecUpgradeResult(
            target_spec_id=target_spec_id(self.table, self.options.to),
            files_total=len(last.data),
            files_by_metadata=self.moved,
            files_by_rewrite=self.rewritten,
            files_left=max(0, sum(reasons.values()) - self.rewritten),
            reasons=reasons,
            deletes_carried=self.carried,
            snapshot_ids=tuple(self.snapshot_ids),
            notes=tuple(notes),
            dry_run=self.options.dry_run,
        )


def target_spec_id(table: Table, to: int | str) -> int:
    """Resolve a spec id or ``current``.

    Raises:
        UnknownSpecError: The table has no such spec.
        InvalidOptionError: Not a spec id.
    """
    if to == CURRENT:
        return table.metadata.default_spec_id
    text = str(to)
    if not text.isdecimal():
        raise InvalidOptionError(f"{to!r} is not a partition spec: give {CURRENT} or an id", context={"to": text})
    known = sorted(table.metadata.specs())
    if int(text) not in known:
        listed = ", ".join(map(str, known))
        raise UnknownSpecError(
            f"the table has no partition spec {text}; it has {listed}", context={"spec_id": int(text)}
        )
    return int(text)
