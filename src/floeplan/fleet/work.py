"""The kinds of work, what a planner found of one, and the table that is worked on.

Rule: a gain is in bytes. A file or manifest that is no longer opened counts ``read.split.open-file-cost`` of the table,
for every logged run that opens it; a table without logged runs counts as read once. So work on different tables is
comparable.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyiceberg.table import Table

from floeplan.audit.candidates import Candidate
from floeplan.audit.reports import Workload, read_workload
from floeplan.errors import BadInputError
from floeplan.fleet.policy import Settings
from floeplan.text import parse_count
from floeplan.transaction.catalog_commit import CommitOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPAIR_KIND, UPGRADE, COMPACT, CLUSTER, MANIFESTS, EXPIRE, ORPHANS = KINDS = (
    "repair",
    "upgrade-spec",
    "compact",
    "cluster",
    "rewrite-manifests",
    "expire",
    "remove-orphans",
)
STAGE = {REPAIR_KIND: 0, UPGRADE: 1, COMPACT: 2, CLUSTER: 2, MANIFESTS: 3, EXPIRE: 4, ORPHANS: 4}
"""Work of a table waits for its work of earlier stages: merged files may have rows of several partitions, so that no
bounds prove one; what moves and merges files also writes manifests, and all of these leave files behind."""
YIELDING = (UPGRADE, COMPACT, CLUSTER, MANIFESTS)
"""Kinds that would compete with the maintenance of another engine."""

Numbers: TypeAlias = Mapping[str, int]
_OPEN_COST = 4 * 2**20
_LEAST_COST = 64 * 1024
"""Bytes that a commit costs at least, so that gains of work on metadata can be compared."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work that a planner found.

    Attributes:
        kind: One of ``KINDS``.
        reason: What it would do.
        gain: Its gain in bytes, as the planner predicts it.
        bytes: Bytes of data files that it reads and writes again; 0 for work on metadata.
        files: Data files that it touches.
        numbers: Further counts of the plan, which ``achieved`` has too.
        candidate: The advice that ``cluster`` applies.
    """

    kind: str
    reason: str
    gain: int
    bytes: int = 0
    files: int = 0
    numbers: Numbers | None = None
    candidate: Candidate | None = None

    def score(self, factor: float) -> float:
        """The gain per byte, corrected by what earlier work of the kind achieved."""
        return self.gain * factor / (self.bytes + _LEAST_COST)

    def predicted(self) -> dict[str, int]:
        """The JSON form of the prediction."""
        return {"gain": self.gain, "bytes": self.bytes, "files": self.files, **(self.numbers or {})}


@dataclass(frozen=True, slots=True)
class Context:
    """A table that is looked at or worked on.

    Attributes:
        table: The table.
        name: Its name.
        settings: What may be done with it.
        catalog: The name of its catalog.
        reports: The scan reports.
        now_s: The time.
        spark: A session to rewrite on; ``None`` rewrites in this process.
        orphans_due: Whether its files may be listed.
        max_files: The files that a compaction may rewrite.
        continued: Whether an earlier run did a part of the work, so that the rest is done however little it is.
        commit: How to commit.
    """

    table: Table
    name: str
    settings: Settings
    catalog: str | None
    reports: str
    now_s: float
    spark: SparkSession | None = None
    orphans_due: bool = True
    max_files: int | None = None
    continued: bool = False
    commit: CommitOptions | None = None

    @property
    def open_cost(self) -> int:
        """Bytes that opening a file is worth."""
        found = parse_count(self.table.metadata.properties.get("read.split.open-file-cost"))
        return _OPEN_COST if found is None else found

    def workload(self) -> Workload:
        """The logged predicates of the table; empty without reports."""
        with suppress(BadInputError):
            return read_workload(self.reports, self.name, self.table.schema(), catalog=self.catalog)
        return Workload((), 0)
