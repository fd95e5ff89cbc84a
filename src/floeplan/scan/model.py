"""The files of a plan, and the options of planning.

A plan is columnar: the kept entries, their deletes, residuals and row groups. ``PlannedFiles`` creates a ``FileScan``
per file only when it is accessed, so a plan of 400,000 files costs no Python object per file. What it creates is a view
of two references: an attribute is looked up in a list per column and batch, which is made when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floeplan import arrow_compute as pc
from floeplan.errors import InvalidOptionError
from floeplan.metadata.delete_index import DeleteKind, DeleteMatches
from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.metadata.manifests.values import to_logical
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.stats import TriState
from floeplan.scan.projection import PartitionNames
from floeplan.vectors import arrow

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from floeplan.metadata.manifests.entries import EntryColumns
    from floeplan.metadata.manifests.manifest_list import ManifestListTable
    from floeplan.partition.union import UnionPartitionType
    from floeplan.snapshot.effects import Predicate
    from floeplan.snapshot.passes import EvaluatedFiles, ScanDeletes
    from floeplan.vectors import Ints

_BATCH = 1024
_STORED = {
    "path": "file_path",
    "format": "file_format",
    "spec_id": "spec_id",
    "record_count": "record_count",
    "file_size": "file_size_in_bytes",
    "sequence_number": "sequence_number",
}
"""Attributes of a file that are columns of manifest entries."""
_STATES = tuple(TriState)
Described = TypeVar("Described")
_DELETE_COLUMNS = (*_STORED.values(), "equality_ids", "content_offset", "content_size_in_bytes", "key_metadata")


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
    encrypted: bool = False

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
    first_row_id: int | None = None
    partition_values: Mapping[str, object] = field(default_factory=dict)

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


class FileView(FileScan):
    """A file of a plan: a ``FileScan`` whose attributes are looked up in columns (``_FileColumns``).

    It is pickled, and replaced by ``dataclasses.replace``, as a ``FileScan`` with values of its own.
    """

    __slots__ = ("_columns", "_row")
    __hash__ = FileScan.__hash__
    _columns: _FileColumns
    _row: int

    def __new__(cls, *values: Any, **named: Any) -> FileScan:  # type: ignore[misc]
        """A file of its own: views are made by ``PlannedFiles`` only."""
        return FileScan(*values, **named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileScan) and _values(self) == _values(other)

    def __reduce__(self) -> tuple[type[FileScan], tuple[Any, ...]]:
        return FileScan, _values(self)


def _values(file: FileScan) -> tuple[Any, ...]:
    return tuple(getattr(file, attribute.name) for attribute in fields(FileScan))


def _column_property(name: str) -> property:
    return property(lambda view: getattr(view._columns, name)[view._row])


for _attribute in fields(FileScan):
    setattr(FileView, _attribute.name, _column_property(_attribute.name))


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

    @classmethod
    def whole(
        cls, entries: EntriesTable, deletes: ScanDeletes, matches: DeleteMatches, union: UnionPartitionType
    ) -> PlannedFiles:
        """Data files of which every row matters."""
        return cls(
            entries=entries,
            states=np.full(len(entries), TriState.TRUE, dtype=np.int8),
            residuals=(TRUE,),
            residual_of=np.zeros(len(entries), dtype=np.intp),
            deletes=deletes.entries,
            delete_kinds=deletes.kinds,
            matches=matches,
            row_groups={},
            names=PartitionNames(union, entries.partition_types),
        )

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<{len(self):,} files>"

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

    def to_arrow(self) -> pa.Table:
        """The columns: one row per file, with the union partition tuple as a struct and deletes as their number."""
        whole, entries = _FileColumns(self, range(len(self))), self.entries
        union = [field for field in self.names.union.fields if field.id in entries.partition_types]
        tuples = [to_logical(entries.partition_types[f.id], entries.array(partition_column(f.id))) for f in union]
        residuals = pa.array(list(map(str, self.residuals)), pa.string()).take(arrow(self.residual_of))
        proven = pa.array([state is TriState.TRUE for state in whole.tri_state], pa.bool_())
        columns = {name: entries.array(column) for name, column in _STORED.items()} | {
            "partition": pa.StructArray.from_arrays(tuples, [f.name for f in union]) if union else pa.nulls(len(self)),
            "row_groups": pa.array(whole.row_groups, pa.list_(pa.int32())),
            "deletes": arrow(self.matches.counts),
            "tri_state": pa.array([state.name.lower() for state in whole.tri_state], pa.string()),
            "residual": pc.if_else(proven, str(TRUE), residuals),
        }
        return pa.table(columns)

    def _files(self, rows: range) -> Iterator[FileScan]:
        """Create the views of some files, ``_BATCH`` of them over the same lists."""
        new, slots = object.__new__, vars(FileView)
        set_columns, set_row = slots["_columns"].__set__, slots["_row"].__set__  # a frozen class has no setattr
        for start in range(0, len(rows), _BATCH):
            some = rows[start : start + _BATCH]
            columns = _FileColumns(self, some)
            for at in range(len(some)):
                view = new(FileView)
                set_columns(view, columns)
                set_row(view, at)
                yield view


class _FileColumns:
    """The attributes of some files of a plan, each a list that is made when it is first used."""

    if TYPE_CHECKING:  # made by ``__getattr__``
        spec_id: list[int]
        row_groups: list[tuple[int, ...] | None]
        tri_state: list[TriState]

    def __init__(self, files: PlannedFiles, rows: range) -> None:
        self._plan, self._rows = files, rows
        self._index = slice(rows.start, rows.stop) if rows.step == 1 else np.array(rows, dtype=np.int64)

    def __getattr__(self, name: str) -> list[Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        made = self._stored(_STORED[name]) if name in _STORED else getattr(self, f"_make_{name}")()
        self.__dict__[name] = made
        return made

    def _stored(self, name: str) -> list[Any]:
        column, index = self._plan.entries.table.column(name), self._index
        chosen = column.slice(index.start, len(self._rows)) if isinstance(index, slice) else column.take(arrow(index))
        return chosen.to_pylist()  # type: ignore[no-any-return]

    def _make_encrypted(self) -> list[bool]:
        return [key is not None for key in self._stored("key_metadata")]

    def _make_opened(self) -> list[RowGroups | None]:
        return [self._plan.row_groups.get(row) for row in self._rows]

    def _make_row_groups(self) -> list[tuple[int, ...] | None]:
        return [None if opened is None else opened.kept for opened in self.opened]

    def _make_row_selection(self) -> list[RowSelection | None]:
        return [None if opened is None else opened.selection for opened in self.opened]

    def _make_tri_state(self) -> list[TriState]:
        found = list(map(_STATES.__getitem__, self._plan.states[self._index].tolist()))
        for at, opened in enumerate(self.opened):
            if opened is not None and opened.proven:
                found[at] = TriState.TRUE
        return found

    def _make_residual(self) -> list[IrExpr]:
        residuals, codes = self._plan.residuals, self._plan.residual_of[self._index].tolist()
        states = zip(self.tri_state, codes, strict=True)
        return [TRUE if state is TriState.TRUE else residuals[code] for state, code in states]

    def _make_partition(self) -> list[dict[str, object]]:
        return self._by_tuple(self._plan.names.readable)

    def _make_constants(self) -> list[dict[int, object]]:
        return self._by_tuple(self._plan.names.identities)

    def _make_partition_values(self) -> list[dict[str, object]]:
        return self._by_tuple(self._plan.names.values)

    def _make_first_row_id(self) -> list[int | None]:
        return self._stored("first_row_id") if "first_row_id" in self._plan.entries else [None] * len(self._rows)

    def _by_tuple(self, describe: Callable[[int, Mapping[str, Any]], Described]) -> list[Described]:
        """What a function returns for the partition tuple of each file; files of one partition share it."""
        names = [partition_column(field_id) for field_id in self._plan.entries.partition_types]
        tuples = list(zip(self.spec_id, *map(self._stored, names), strict=True))
        keys = list(map(repr, tuples))  # not the tuples themselves: -0.0 equals 0.0
        distinct = dict(zip(keys, tuples, strict=True))
        known = {key: describe(one[0], dict(zip(names, one[1:], strict=True))) for key, one in distinct.items()}
        return list(map(known.__getitem__, keys))

    def _make_deletes(self) -> list[tuple[DeleteScan, ...]]:
        plan = self._plan
        matched = [plan.matches.of(row).tolist() for row in self._rows]
        used = sorted(set().union(*matched))  # files share the object of a shared delete file
        table = plan.deletes.table.select([name for name in _DELETE_COLUMNS if name in plan.deletes])
        entries = table.take(arrow(np.array(used, dtype=np.int64))).to_pylist()
        deletes = {row: _delete(plan.delete_kinds[row], entry) for row, entry in zip(used, entries, strict=True)}
        return [tuple(deletes[row] for row in rows) for rows in matched]


def _delete(kind: np.int8, entry: Mapping[str, Any]) -> DeleteScan:
    return DeleteScan(
        path=entry["file_path"],
        kind=DeleteKind(int(kind)),
        format=entry["file_format"],
        record_count=int(entry["record_count"]),
        file_size=int(entry["file_size_in_bytes"]),
        sequence_number=int(entry["sequence_number"]),
        equality_ids=tuple(entry.get("equality_ids") or ()),
        content_offset=entry.get("content_offset"),
        content_size=entry.get("content_size_in_bytes"),
        encrypted=entry.get("key_metadata") is not None,
    )


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """A warning of a plan; ``kind`` is stable, ``message`` is human-readable."""

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
    """What planning may use. None of these changes the rows of a scan, unless the table has misplaced deletes."""

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
    misplaced_deletes: bool = False
    """Apply position deletes and deletion vectors that are recorded in another partition than their data file instead
    of refusing the table; see ``floeplan doctor --repair``.
    """
    all_deletes: bool = False
    """Read all delete manifests, not only those that may match the filter. Changes and rewrites need it: a delete that
    is recorded in another partition than its data file must be refused, or its rows would be written back.
    """
    planning: DistributedPlanning | None = None
    """Evaluates the entries of many manifests, such as ``floeplan.spark.planning.SparkPlanning``."""
    report: bool | ReportStore = True
    """Append a scan report: to the default store, to this one, or not at all."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidOptionError(f"concurrency is {self.concurrency} but must be at least 1")
