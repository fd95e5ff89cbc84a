"""Which delete files apply to which data files: the rules of the Iceberg specification as joins over columns.

=====================================  =======================  ======================================
delete file                            found by                 applies when
=====================================  =======================  ======================================
equality, unpartitioned spec           every data file          delete.seq > data.seq
equality, partitioned spec             (spec id, partition)     delete.seq > data.seq
position, one data file                path of the data file    delete.seq >= data.seq
position, otherwise                    (spec id, partition)     delete.seq >= data.seq
deletion vector                        path of the data file    replaces all position deletes of it
=====================================  =======================  ======================================

A spec with only void fields is unpartitioned. Contradictory metadata is an error that names the files: two deletion
vectors of one data file, a vector older than its data file, a path-scoped delete whose spec or partition differs from
its data file's (engines disagree about such a delete, so guessing would lose rows or bring deleted ones back).

Fail-safe: an equality delete is left out only when statistics prove that it shares no key with the data file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floeplan import arrow_compute as pc
from floeplan.errors import CorruptMetadataError
from floeplan.predicate.stats import Bound, ColumnStats, take, to_mask
from floeplan.vectors import Ints, Mask, arrow, expand_runs, integers, offsets_of


class DeleteKind(IntEnum):
    """How a delete file finds its data files."""

    EQUALITY_GLOBAL = 0
    EQUALITY_PARTITION = 1
    POSITION_FILE = 2
    POSITION_PARTITION = 3
    VECTOR = 4


class DataFiles(NamedTuple):
    """The columns of data files that matching needs; ``partition`` codes (spec id, tuple), shared with the deletes."""

    path: pa.Array
    sequence: Ints
    partition: Ints
    stats: Mapping[int, ColumnStats]


class DeleteFiles(NamedTuple):
    """The columns of delete files that matching needs.

    ``target`` is the path of the one data file a path-scoped delete names (null otherwise) and ``equality_ids`` the
    key field ids of each equality delete.
    """

    path: pa.Array
    kind: npt.NDArray[np.int8]
    sequence: Ints
    partition: Ints
    target: pa.Array
    equality_ids: tuple[tuple[int, ...], ...]
    stats: Mapping[int, ColumnStats]


class DeleteMatches(NamedTuple):
    """For data file ``i`` the delete rows ``deletes[offsets[i]:offsets[i + 1]]``, in the order of the delete files."""

    offsets: Ints
    deletes: Ints

    def of(self, data_row: int) -> Ints:
        """Rows of the delete files that apply to one data file."""
        return self.deletes[self.offsets[data_row] : self.offsets[data_row + 1]]

    @property
    def counts(self) -> Ints:
        """Number of delete files per data file."""
        return np.diff(self.offsets)

    @property
    def data_rows(self) -> Ints:
        """The row of the data file of each of ``deletes``."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def take(self, rows: Ints) -> DeleteMatches:
        """The matches of some data files, in the order given."""
        counts = self.counts[rows]
        return DeleteMatches(offsets_of(counts), self.deletes[expand_runs(self.offsets[rows], counts)])

    @classmethod
    def none(cls, data_files: int) -> DeleteMatches:
        """No data file has deletes."""
        return cls(np.zeros(data_files + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))


_Pairs: TypeAlias = tuple[Ints, Ints]
"""Rows of data files and, for each, the row of a delete file."""


def match_deletes(data: DataFiles, deletes: DeleteFiles, *, misplaced: bool = False) -> DeleteMatches:
    """Match every delete file with the data files it applies to.

    With ``misplaced``, deletes that name a data file of another partition apply to it; otherwise they are an error, as
    in Iceberg since apache/iceberg#16957.
    """
    if not len(deletes.kind) or not len(data.sequence):
        return DeleteMatches.none(len(data.sequence))
    vectors = _by_path(data, deletes, DeleteKind.VECTOR, misplaced)
    files, counts = np.unique(vectors[0], return_counts=True)
    if (counts > 1).any():
        path = data.path[files[np.argmax(counts > 1)]].as_py()
        raise CorruptMetadataError(f"data file {path} has more than one deletion vector", context={"data_file": path})
    older = np.flatnonzero(deletes.sequence[vectors[1]] < data.sequence[vectors[0]])
    if len(older):
        path = data.path[vectors[0][older[0]]].as_py()
        raise CorruptMetadataError(
            f"the deletion vector of data file {path} is older than the file itself", context={"data_file": path}
        )
    # A deletion vector replaces the position deletes of its data file.
    replaced = np.zeros(len(data.sequence), dtype=np.bool_)
    replaced[vectors[0]] = True
    positions = _join(
        _by_path(data, deletes, DeleteKind.POSITION_FILE, misplaced),
        _by_partition(data, deletes, DeleteKind.POSITION_PARTITION, strictly_newer=False),
    )
    positions = _select(positions, ~replaced[positions[0]])
    equality = _join(
        _by_partition(data, deletes, DeleteKind.EQUALITY_GLOBAL, strictly_newer=True),
        _by_partition(data, deletes, DeleteKind.EQUALITY_PARTITION, strictly_newer=True),
    )
    equality = _select(equality, _may_share_a_key(data, deletes, equality))
    data_rows, delete_rows = _join(vectors, positions, equality)
    offsets = offsets_of(np.bincount(data_rows, minlength=len(data.sequence)))
    return DeleteMatches(offsets, delete_rows[np.lexsort((delete_rows, data_rows))])


def _by_partition(data: DataFiles, deletes: DeleteFiles, kind: DeleteKind, *, strictly_newer: bool) -> _Pairs:
    """Pairs with equal partition codes (any code for a global delete) and a late enough sequence number.

    Deletes are sorted by (code, sequence number); those of one data file are then one run, found by two searches.
    """
    rows = np.flatnonzero(deletes.kind == kind)
    if not len(rows):
        return rows, rows
    everywhere = kind is DeleteKind.EQUALITY_GLOBAL
    delete_code = np.zeros(len(rows), dtype=np.int64) if everywhere else deletes.partition[rows]
    data_code = np.zeros(len(data.sequence), dtype=np.int64) if everywhere else data.partition
    known = np.unique(deletes.sequence[rows])
    width = len(known) + 1
    delete_key = delete_code * width + np.searchsorted(known, deletes.sequence[rows])
    order = np.argsort(delete_key, kind="stable")
    sorted_key = delete_key[order]
    oldest = np.searchsorted(known, data.sequence, side="right" if strictly_newer else "left")
    start = np.searchsorted(sorted_key, data_code * width + oldest)
    end = np.searchsorted(sorted_key, (data_code + 1) * width)
    counts = end - start
    return np.repeat(np.arange(len(counts)), counts), rows[order[expand_runs(start, counts)]]


def _by_path(data: DataFiles, deletes: DeleteFiles, kind: DeleteKind, misplaced: bool) -> _Pairs:
    """Pairs in which the delete names the path of the data file and is not older than it."""
    rows = np.flatnonzero(deletes.kind == kind)
    if not len(rows):
        return rows, rows
    found = pc.index_in(pc.take(deletes.target, arrow(rows)), value_set=data.path)
    present = to_mask(found.is_valid())
    rows = rows[present]
    data_rows = integers(found.drop_null())
    wrong = np.flatnonzero(data.partition[data_rows] != deletes.partition[rows])
    if len(wrong) and not misplaced:
        data_path, delete_path = data.path[data_rows[wrong[0]]].as_py(), deletes.path[rows[wrong[0]]].as_py()
        raise CorruptMetadataError(
            f"delete file {delete_path} is recorded in another spec or partition than its data file {data_path}; "
            f"{len(wrong)} such delete file(s): 'floeplan doctor --repair' moves them to the partitions of their data "
            "files, and plan and scan apply them with --misplaced-deletes",
            context={"delete_file": delete_path, "data_file": data_path, "delete_files": len(wrong)},
        )
    if kind is DeleteKind.VECTOR:
        return data_rows, rows  # the caller refuses a vector that is older than its data file
    return _select((data_rows, rows), deletes.sequence[rows] >= data.sequence[data_rows])


def _may_share_a_key(data: DataFiles, deletes: DeleteFiles, pairs: _Pairs) -> Mask:
    """Whether bounds admit a common key, per pair of data file and equality delete: every key field must overlap."""
    keep = np.ones(len(pairs[0]), dtype=np.bool_)
    for field_id in sorted({field_id for keys in set(deletes.equality_ids) for field_id in keys}):
        left, right = data.stats.get(field_id), deletes.stats.get(field_id)
        if left is None or right is None:
            continue
        concerned = np.array([field_id in keys for keys in deletes.equality_ids])[pairs[1]]
        data_rows, delete_rows = _select(pairs, concerned)
        keep[concerned] &= _overlap(left, data_rows, right, delete_rows)
    return keep


def _overlap(left: ColumnStats, left_rows: Ints, right: ColumnStats, right_rows: Ints) -> Mask:
    """Whether two containers may hold an equal value: both a null, both a NaN, or values in overlapping ranges."""
    nulls = left.may_null[left_rows] & right.may_null[right_rows]
    nans = left.may_nan[left_rows] & right.may_nan[right_rows]
    values = left.may_value[left_rows] & right.may_value[right_rows]
    apart = _above(left.lower, left_rows, right.upper, right_rows) | _above(
        right.lower, right_rows, left.upper, left_rows
    )
    return nulls | nans | (values & ~apart)


def _above(lower: Bound | None, lower_rows: Ints, upper: Bound | None, upper_rows: Ints) -> Mask:
    """Whether a lower bound provably exceeds an upper bound."""
    if lower is None or upper is None or type(lower.values) is not type(upper.values):
        return np.zeros(len(lower_rows), dtype=np.bool_)
    left, right = take(lower.values, lower_rows), take(upper.values, upper_rows)
    greater = np.asarray(left > right) if isinstance(left, np.ndarray) else to_mask(pc.greater(left, right))
    return lower.valid[lower_rows] & upper.valid[upper_rows] & greater


def _join(*parts: _Pairs) -> _Pairs:
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _select(pairs: _Pairs, keep: Mask) -> _Pairs:
    return pairs[0][keep], pairs[1][keep]


@dataclass(frozen=True, slots=True, order=True)
class DeleteFileId:
    """A delete file, or one deletion vector of several in a Puffin file (``content_offset`` not null)."""

    path: str
    content_offset: int | None = None
