"""Where the rows of a group went, in files beside its data files: the ``PositionMap`` of a group of several tasks.

Such a group may have more rows than the driver has memory for, and its map is needed only if another writer deletes
rows of its files meanwhile. So every task writes a map file, and the driver reads from it the rows of a file for which
it has to carry deletes over.

A row is identified by its *number*: the position of its file in the group in the upper bits, its position in that file
in the lower 40. A map file has runs of consecutive rows that stay consecutive: the file, the first position, the count,
and the offset in the task's new files. Runs are sorted by number, so the statistics of its row groups tell where the
runs of a file are.

Fail-safe: map files are removed when the group is committed or discarded; what a killed process leaves behind lies in
the table's data location, where no snapshot refers to it and ``remove-orphans`` finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.files import writing
from floeplan.rewrite.run.group import PositionMapBuilder, positions_in_files
from floeplan.vectors import Ints

MAP_SUFFIX = ".rowmap"
_POSITION_BITS = 40
MAX_FILES = (1 << 63 - _POSITION_BITS) - 1
"""Files of a group whose rows have numbers."""
_ROW_GROUP_ROWS = 128 * 1024
"""Rows whose runs are one row group of a map file; no run continues in the next one."""
_SCHEMA = pa.schema([("source", pa.int32()), ("position", pa.int64()), ("count", pa.int64()), ("offset", pa.int64())])
_ENCODINGS = dict.fromkeys(_SCHEMA.names, "DELTA_BINARY_PACKED")


def row_numbers(source: int, positions: Ints) -> Ints:
    """The numbers of rows of one file."""
    return positions + (source << _POSITION_BITS)


@dataclass(slots=True)
class NumberedRowsBuilder(PositionMapBuilder):
    """Records rows that are read by their number instead of by the runs they are read in."""

    _numbers: list[Ints] = field(default_factory=list)

    def add_numbers(self, numbers: Ints) -> range:
        """Record that rows were read; return the places they get, in the order of reading."""
        first = self.rows
        self._numbers.append(numbers)
        self.rows += len(numbers)
        return range(first, self.rows)

    def arrange(self) -> list[int]:
        """Give what was read so far the places of its row numbers; return the order of the earlier calls."""
        order = sorted(range(len(self._numbers)), key=lambda at: int(self._numbers[at][0]))
        self._numbers = [self._numbers[at] for at in order]
        return order

    @property
    def checksum(self) -> int:
        """The sum of all numbers, modulo 2**64."""
        return checksum(self._numbers)

    def write(self, io: FileIO, path: str) -> MapFile:
        """Write the map; every row must be written by now."""
        self.check_complete()
        numbers = np.concatenate([np.zeros(0, dtype=np.int64), *self._numbers])
        self._numbers.clear()
        order, offset = np.argsort(numbers, kind="stable"), self.offset_per_row()
        settings = {"compression": "zstd", "use_dictionary": False, "column_encoding": _ENCODINGS}
        with writing(path), io.new_output(path).create() as out, pq.ParquetWriter(out, _SCHEMA, **settings) as writer:
            # Some rows at a time: what is computed from them stays in the CPU cache.
            for first in range(0, len(order), _ROW_GROUP_ROWS):
                some = order[first : first + _ROW_GROUP_ROWS]
                writer.write_table(_runs(numbers[some], offset[some].astype(np.int64)))
        return MapFile(path, tuple(self.targets), np.array(self.target_rows, dtype=np.int64))


def _runs(numbers: Ints, offset: Ints) -> pa.Table:
    """Runs of rows with ascending numbers; one ends where the next row of a file is missing or is not next."""
    follows = (np.diff(numbers) == 1) & (np.diff(offset) == 1)
    first = np.flatnonzero(np.append(True, ~follows))
    count = np.diff(np.append(first, len(numbers)))
    source, position = numbers[first] >> _POSITION_BITS, numbers[first] & ((1 << _POSITION_BITS) - 1)
    return pa.table([source.astype(np.int32), position, count, offset[first]], schema=_SCHEMA)


def checksum(numbers: Sequence[Ints]) -> int:
    """The sum of row numbers, modulo 2**64."""
    return sum(int(part.view(np.uint64).sum()) for part in numbers) % 2**64


@dataclass(frozen=True, slots=True)
class MapFile:
    """The map that a task wrote: where it is, and the new files of the task with their rows."""

    path: str
    targets: tuple[str, ...]
    target_rows: Ints

    def remap(self, io: FileIO, source: int, positions: Ints) -> dict[str, Ints]:
        """Map positions of an old file; those that this task did not read are left out."""
        runs = self._runs(io, source)
        starts, counts, offsets = (np.asarray(runs.column(name)) for name in ("position", "count", "offset"))
        run = np.searchsorted(starts, positions, side="right") - 1
        positions, run = positions[run >= 0], run[run >= 0]
        inside = positions - starts[run]
        read = inside < counts[run]
        return positions_in_files(np.sort(offsets[run[read]] + inside[read]), self.targets, self.target_rows)

    def _runs(self, io: FileIO, source: int) -> pa.Table:
        """The runs of one old file."""
        try:
            with io.new_input(self.path).open() as opened, pq.ParquetFile(opened) as file:
                groups = (file.metadata.row_group(at).column(0).statistics for at in range(file.num_row_groups))
                # Without rows there are no statistics: a range may be empty.
                found = [at for at, known in enumerate(groups) if known is None or known.min <= source <= known.max]
                runs = file.read_row_groups(found)
        except (OSError, pa.ArrowException) as error:
            raise CorruptMetadataError(
                f"cannot read the position map {self.path} of rewritten rows: {error}", context={"file": self.path}
            ) from error
        return runs.filter(pa.array(np.asarray(runs.column("source")) == source))


@dataclass(frozen=True, slots=True)
class StoredMap:
    """Maps rows of the old files of a group to rows of its new files, as ``PositionMap`` does."""

    io: FileIO
    sources: tuple[str, ...]
    files: tuple[MapFile, ...]

    def remap(self, path: str, positions: npt.ArrayLike) -> dict[str, Ints]:
        """Map positions in an old file to sorted positions in new files, by path."""
        source, wanted = self.sources.index(path), np.asarray(positions, dtype=np.int64)
        found: dict[str, Ints] = {}
        for file in self.files:
            found |= file.remap(self.io, source, wanted)
        return found
