"""Options of scan planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from floeplan.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from floeplan.metadata.manifests.entries import EntryColumns
    from floeplan.metadata.manifests.manifest_list import ManifestListTable
    from floeplan.scan.report import ReportStore
    from floeplan.snapshot.passes import EvaluatedFiles, Predicate
    from floeplan.vectors import Ints

DEFAULT_CONCURRENCY = 64


class DistributedPlanning(Protocol):
    """Evaluates the entries of many manifests outside this process."""

    @property
    def threshold(self) -> int:
        """Plans with fewer manifests are made in this process."""

    def evaluate(
        self, predicate: Predicate, manifests: ManifestListTable, rows: Ints, columns: EntryColumns, io: FileIO
    ) -> EvaluatedFiles:
        """Run pass 2 on these rows of the manifest list."""


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What planning may use. None of these changes which rows a scan returns."""

    footers: bool = True
    """Open the footers of files that are kept but not proven, and prune their row groups."""
    page_index: bool = False
    """Prune within row groups by page statistics; one more request per file."""
    bloom_filter: bool = False
    """Prune row groups by bloom filters; one more request per file."""
    concurrency: int = DEFAULT_CONCURRENCY
    """Requests in flight against the store."""
    cache: bool = True
    """Keep decoded manifests on local disk; manifests never change."""
    root: str | None = None
    """Plan from this root manifest of the snapshot (see ``floeplan entries``) instead of from its manifests."""
    recover: bool = False
    """Count the files of other specs whose partition under the default spec is provable from their bounds."""
    planning: DistributedPlanning | None = None
    """Evaluates the entries of many manifests, such as ``floeplan.spark.planning.SparkPlanning``."""
    report: bool | ReportStore = True
    """Append a scan report: to the default store, to this one, or not at all."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidOptionError(f"concurrency is {self.concurrency} but must be at least 1")
