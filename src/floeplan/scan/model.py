"""The files of a plan, and the options of planning.

A plan is columnar: the kept entries, their deletes, residuals and row groups. ``PlannedFiles`` creates a ``FileScan``
per file only when it is accessed, so a plan of 400,000 files costs no Python object per file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floeplan.errors import InvalidOptionError
from floeplan.metadata.delete_index import DeleteKind, DeleteMatches
from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.parquet.prune.selection import RowSelection, distinct
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.stats import TriState
from floeplan.scan.projection import PartitionNames

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from floeplan.metadata.manifests.entries import EntryColumns
    from floeplan.metadata.manifests.manifest_list import ManifestListTable
    from floeplan.snapshot.passes import EvaluatedFiles, Predicate
    from floeplan.vectors import Ints

_BATCH = 1024
_SHARED_COLUMNS = ("file_path", "file_format", "record_count", "file_size_in_bytes", "sequence_number")
_FILE_COLUMNS = ("spec_id", *_SHARED_COLUMNS, "key_metadata")
_DELETE_COLUMNS = (*_SHARED_COLUMNS, "equality_ids", "content_offset", "content_size_in_bytes")


@dataclass(frozen=True, slots=True)
class DeleteScan:
    """A delete file that applies to a data file."""

    path: str
    kind: DeleteKind
    format: str
    record_count: int
    file_size: int
    sequence_number: int
    equality_ids: tuple[int, ...]
    content_offset: int | None
    content_size: int | None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "path": self.path,
            "kind": self.kind.name.lower().replace("_", "-"),
            "format": self.format,
            "record_count": self.record_count,
            "sequence_number": self.sequence_number,
        }


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The result of the footer pass for one file: the kept row groups and the rows to read in them.

    ``selection`` counts rows of the file; ``None`` means every row of the kept row groups.
    """

    kept: tuple[int, ...]
    total: int
    rows: int
    bytes: int
    selection: RowSelection | None
    proven: bool
    pages_total: int = 0
    pages_kept: int = 0


@dataclass(frozen=True, slots=True)
class FileScan:
    """One data file to read: its row groups and rows, the deletes that apply, and the residual.

    ``row_groups`` is ``None`` when the footer was not opened: then the whole file is read. ``residual`` is what must
    still be evaluated on its rows; TRUE when every row matches.
    """

    path: str
    format: str
    spec_id: int
    partition: Mapping[str, object]
    record_count: int
    file_size: int
    sequence_number: int
    row_groups: tuple[int, ...] | None
    row_selection: RowSelection | None
    deletes: tuple[DeleteScan, ...]
    residual: IrExpr
    tri_state: TriState
    encrypted: bool
    constants: Mapping[int, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "path": self.path,
            "spec_id": self.spec_id,
            "partition": dict(self.partition),
            "record_count": self.record_count,
            "file_size": self.file_size,
            "row_groups": None if self.row_groups is None else list(self.row_groups),
            "row_selection": None if self.row_selection is None else self.row_selection.to_pairs(),
            "deletes": [delete.to_dict() for delete in self.deletes],
            "residual": str(self.residual),
            "tri_state": self.tri_state.name.lower(),
        }


@dataclass(frozen=True, slots=True)
class PlannedFiles(Sequence[FileScan]):
    """The kept data files as columns; behaves as a sequence of ``FileScan``."""

    entries: EntriesTable
    states: npt.NDArray[np.int8]
    residuals: tuple[IrExpr, ...]
    residual_of: npt.NDArray[np.intp]
    deletes: EntriesTable
    delete_kinds: npt.NDArray[np.int8]
    matches: DeleteMatches
    row_groups: Mapping[int, RowGroups]
    names: PartitionNames

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> FileScan: ...
    @overload
    def __getitem__(self, index: slice) -> list[FileScan]: ...
    def __getitem__(self, index: int | slice) -> FileScan | list[FileScan]:
        if isinstance(index, slice):
            return list(self._files(range(*index.indices(len(self)))))
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(index)
        return next(self._files(range(row, row + 1)))

    def __iter__(self) -> Iterator[FileScan]:
        return self._files(range(len(self)))

    def take(self, rows: npt.NDArray[np.int64]) -> PlannedFiles:
        """The files at these rows, in this order."""
        return replace(
            self,
            entries=self.entries.take(rows),
            states=self.states[rows],
            residual_of=self.residual_of[rows],
            matches=self.matches.take(rows),
            row_groups={at: self.row_groups[row] for at, row in enumerate(rows.tolist()) if row in self.row_groups},
        )

    def _files(self, rows: range) -> Iterator[FileScan]:
        """Create the objects of some files, ``_BATCH`` rows of the columns at a time."""
        partition = [partition_column(field_id) for field_id in self.entries.partition_types]
        columns = self.entries.table.select([*_FILE_COLUMNS, *partition])
        delete_columns = self.deletes.table.select([name for name in _DELETE_COLUMNS if name in self.deletes])
        for start in range(0, len(rows), _BATCH):
            some = rows[start : start + _BATCH]
            # Files share the object of a shared delete file.
            used = distinct(np.concatenate([self.matches.of(row) for row in some]).astype(np.int64))
            entries = delete_columns.take(pa.array(used)).to_pylist()
            deletes = {row: self._delete(row, entry) for row, entry in zip(used.tolist(), entries, strict=True)}
            for row, entry in zip(some, columns.take(pa.array(some)).to_pylist(), strict=True):
                yield self._file(row, entry, deletes)

    def _file(self, row: int, entry: dict[str, Any], deletes: Mapping[int, DeleteScan]) -> FileScan:
        spec_id = entry["spec_id"]
        opened = self.row_groups.get(row)
        proven = self.states[row] == TriState.TRUE or (opened is not None and opened.proven)
        return FileScan(
            path=entry["file_path"],
            format=entry["file_format"],
            spec_id=spec_id,
            partition=self.names.readable(spec_id, entry),
            record_count=entry["record_count"],
            file_size=entry["file_size_in_bytes"],
            sequence_number=entry["sequence_number"],
            row_groups=None if opened is None else opened.kept,
            row_selection=None if opened is None else opened.selection,
            deletes=tuple(deletes[delete] for delete in self.matches.of(row).tolist()),
            residual=TRUE if proven else self.residuals[self.residual_of[row]],
            tri_state=TriState.TRUE if proven else TriState(int(self.states[row])),
            encrypted=entry["key_metadata"] is not None,
            constants=self.names.identities(spec_id, entry),
        )

    def _delete(self, row: int, entry: dict[str, Any]) -> DeleteScan:
        return DeleteScan(
            path=entry["file_path"],
            kind=DeleteKind(int(self.delete_kinds[row])),
            format=entry["file_format"],
            record_count=int(entry["record_count"]),
            file_size=int(entry["file_size_in_bytes"]),
            sequence_number=int(entry["sequence_number"]),
            equality_ids=tuple(entry.get("equality_ids") or ()),
            content_offset=entry.get("content_offset"),
            content_size=entry.get("content_size_in_bytes"),
        )


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """Something a reader of the plan should know; ``kind`` is stable, ``message`` is for people."""

    kind: str
    message: str
    context: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": self.kind, "message": self.message, "context": dict(self.context)}


DEFAULT_CONCURRENCY = 64


class ReportStore(Protocol):
    """Keeps scan reports."""

    def append(self, report: Mapping[str, Any]) -> None:
        """Keep one report."""


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
