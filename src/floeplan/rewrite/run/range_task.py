"""The tasks of a group that several of them sort: they read rows, divide them into ranges, and write one range each.

Rows reach the task of their range in one of two ways. With a *shuffle*, tasks read some row groups each and divide
their rows (``GroupRows.divide``); Spark moves them. With *range reads*, the task of a range reads the keys of the row
groups and pages that can hold it according to their statistics, and then the other columns of its rows
(``GroupRows.of_range``). Either way ``RangeWriter`` sorts and writes them as ``GroupWriter`` does the rows of a group.

Rule: ``Cuts`` assigns each row to one range, by its key and number alone, so every live row is in exactly one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floeplan.formats.stored import PARQUET
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.ir import IrExpr
from floeplan.rewrite.run.group import GroupAttempt, GroupTask
from floeplan.rewrite.run.rewrite_group import GroupRewriter
from floeplan.rewrite.run.stored_map import MAP_SUFFIX, MapFile, NumberedRowsBuilder, checksum, row_numbers
from floeplan.rewrite.run.write_group import Batch, GroupWriter
from floeplan.rewrite.strategies.base import Cuts, RowOrder
from floeplan.scan.file_rows import FileRows, OpenFile, TableRows
from floeplan.spark.exchange import Part, slices
from floeplan.vectors import Floats, Ints
from floeplan.write.conform import conform
from floeplan.write.data_files import FileTask, FullRowReader
from floeplan.write.parquet_file import encoded_file, high_cardinality_columns
from floeplan.write.partitioning import divide
from floeplan.write.target import WriteTarget

DIVIDED_BYTES = (16 * 1024 * 1024, 64 * 1024 * 1024)
"""Fewest and most bytes of rows that are divided into ranges at once: few stay in the CPU cache."""
SENT_BYTES = 512 * 1024
"""Bytes of rows for each range at once: fewer would cost more to move than to divide."""
TRIAL_BYTES = (8 * 1024 * 1024, 64 * 1024 * 1024)
"""Fewest and most bytes of rows that are sorted and encoded to estimate the size of new files."""
TRIAL_SHARE = 8
"""Bytes of a group for each byte of these rows, which take about three times their encoded bytes."""
TRIAL_PARTS = 32
_NUMBER = "floeplan.row-number"


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive row groups of a file: the position of the file in the group, and the first and last of its rows."""

    source: int
    first_row: int
    end_row: int


@dataclass(frozen=True, slots=True)
class KeySample:
    """Keys of some rows of a file, and what is known of all of them.

    Attributes:
        source: The position of the file in the group.
        keys: The key columns of some live rows.
        numbers: The numbers of these rows.
        rows: Live rows of the file.
        checksum: The sum of their numbers.
        row_groups: Rows of each row group, including deleted ones.
    """

    source: int
    keys: pa.Table
    numbers: Ints
    rows: int
    checksum: int
    row_groups: Ints


@dataclass(frozen=True, slots=True)
class Trial:
    """How some rows compress when they are sorted.

    Attributes:
        ratio: New to old bytes.
        keys: The key columns of the first row of each part of the order.
        numbers: The numbers of these rows.
        weights: Bytes per row of each part.
    """

    ratio: float
    keys: pa.Table
    numbers: Ints
    weights: Floats

    def weights_of(self, order: RowOrder, keys: pa.Table, numbers: Ints) -> Floats:
        """About the bytes of each of some rows, by the part of the order that it is in."""
        at = np.argsort(self.numbers)
        firsts, own = self.keys.take(pa.array(at)), self.numbers[at]
        at = at[ordered := order.exact_permutation(firsts)]
        parts = Cuts(order, firsts.take(pa.array(ordered)).combine_chunks(), own[ordered]).assign(keys, numbers)
        return np.asarray(self.weights[at][np.maximum(parts - 1, 0)])


@dataclass(frozen=True, slots=True)
class RangeTask(GroupTask):
    """One range of a group.

    Attributes:
        number: The number of the range.
        rows: About how many rows it has.
        size: About how many bytes these have in the old files.
        sample: The keys of some of them.
    """

    number: int = 0
    rows: int = 0
    size: int = 0
    sample: pa.Table | None = None

    @property
    def bytes(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What the task of a range wrote: entries of new files, its map, its rows, and the sum of their numbers."""

    added: EntriesTable
    map_file: MapFile
    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Reads the live rows of a group, with their numbers; pickled and sent to tasks."""

    table: TableRows
    target: WriteTarget
    files: tuple[FileTask, ...]
    order: RowOrder

    def sample(self, source: int, before: int, every: int) -> KeySample:
        """Read the keys of a file, and keep each ``every``-th row; ``before`` counts the rows of earlier files."""
        opened = FileRows(self.table).open(self.files[source].file)
        parts, positions, numbers = list[pa.Table](), list[Ints](), list[Ints]()
        for selection in _row_groups(opened):
            rows, live = opened.read(self.order.key_schema, selection)
            found = selection.narrow(live).to_rows()
            kept = np.flatnonzero((found + before) % every == 0)
            parts.append(rows.filter(pa.array(live)).take(pa.array(kept)))
            positions.append(found[kept])
            numbers.append(row_numbers(source, found))
        empty = opened.columns(self.order.key_schema, RowSelection.none())
        keys = pa.concat_tables([empty, *parts], promote_options="permissive").combine_chunks()
        taken = row_numbers(source, np.concatenate([np.zeros(0, dtype=np.int64), *positions]))
        live_rows = sum(map(len, numbers))
        return KeySample(source, keys, taken, live_rows, checksum(numbers), opened.stored.row_group_rows)

    def trial(self, sources: Sequence[int]) -> Trial | None:
        """Sort and encode some rows of some files; ``None`` when these have no live rows."""
        tables, old, reader = list[pa.Table](), 0.0, self._reader(FileRows(self.table))
        # Rows are encoded twice; of a small group, all of them would cost more than the rest of the rewrite.
        group = sum(one.file.file_size for one in self.files)
        enough = min(max(group // TRIAL_SHARE, TRIAL_BYTES[0]), TRIAL_BYTES[1])
        for source in sources:
            file = self.files[source].file
            opened = FileRows(self.table).open(file)
            for selection in _row_groups(opened):
                missing = enough - sum(table.nbytes for table in tables)
                if missing > 0:
                    rows, found = reader.read_with_positions(self.files[source], opened, selection)
                    numbered = self._numbered(rows, row_numbers(source, found.to_rows()))
                    every = max(1, numbered.nbytes // missing)
                    tables.append(numbered.take(pa.array(np.arange(0, numbered.num_rows, every))))
                    old += file.file_size * tables[-1].num_rows / max(1, opened.stored.num_rows)
        if not any(table.num_rows for table in tables):
            return None
        together = pa.concat_tables(tables).combine_chunks()
        ordered = together.take(pa.array(self.order.permutation(together)))
        numbers, ordered = np.asarray(ordered.column(_NUMBER)), ordered.drop_columns([_NUMBER])
        options, plain = self.target.options, high_cardinality_columns(ordered)
        # Rows of one part of the order may compress better than those of another: encode parts of equal rows.
        empty = len(encoded_file(ordered.slice(0, 0), options, plain))
        step = -(-ordered.num_rows // TRIAL_PARTS)
        firsts = np.arange(0, ordered.num_rows, step)
        parts = [ordered.slice(first, step) for first in firsts.tolist()]
        weights = [(len(encoded_file(part, options, plain)) - empty) / part.num_rows for part in parts]
        names = [field.name for field in self.order.key_schema.fields]
        keys = ordered.select(names).take(pa.array(firsts)).combine_chunks()
        return Trial(len(encoded_file(ordered, options, plain)) / old, keys, numbers[firsts], np.array(weights))

    def divide(self, cuts: Cuts, pieces: Sequence[Piece]) -> Iterator[Part]:
        """The rows of some row groups by range, each table in the order of row numbers."""
        size = min(max(SENT_BYTES * len(cuts), DIVIDED_BYTES[0]), DIVIDED_BYTES[1])
        for rows in self._batches(pieces, size):
            yield from divide(rows, cuts.assign(rows, np.asarray(rows.column(_NUMBER))))

    def of_range(self, cuts: Cuts, number: int, condition: IrExpr, sources: Sequence[int]) -> Iterator[pa.Table]:
        """The rows of one range in some files, read where statistics admit the range's leading keys."""
        files = FileRows(self.table)
        reader = self._reader(files)
        pruner = Pruner(CompileResult(condition, condition, condition), self.table.schemas[0])
        for source in sources:
            opened = files.open(self.files[source].file)
            possible = _admitted(opened, pruner, self.order.order.fields[0].source_id)
            for selection in _row_groups(opened, possible=possible):
                keys, live = opened.read(self.order.key_schema, selection)
                positions = selection.narrow(live)
                numbers = row_numbers(source, positions.to_rows())
                inside = cuts.assign(keys.filter(pa.array(live)), numbers) == number
                if inside.any():
                    own = positions.narrow(inside)
                    rows, found = reader.read_with_positions(self.files[source], opened, own)
                    yield self._numbered(rows, row_numbers(source, found.to_rows()))

    def _batches(self, pieces: Iterable[Piece], most: int) -> Iterator[pa.Table]:
        """The live rows of row groups with their numbers, about ``most`` bytes at once.

        Small row groups are combined, a large one is sliced.
        """
        files = FileRows(self.table)
        files.expect(self.files[piece.source].file for piece in pieces)
        reader, waiting, size = self._reader(files), list[pa.Table](), 0
        for piece in pieces:
            task = self.files[piece.source]
            opened = files.open(task.file)
            for selection in _row_groups(opened, piece.first_row, piece.end_row):
                rows, found = reader.read_with_positions(task, opened, selection)
                if not rows.num_rows:
                    continue
                for part in slices(self._numbered(rows, row_numbers(piece.source, found.to_rows())), most):
                    waiting.append(part)
                    size += part.nbytes
                    if size >= most // 2:
                        yield pa.concat_tables(waiting).combine_chunks()
                        waiting, size = [], 0
        if waiting:
            yield pa.concat_tables(waiting).combine_chunks()

    def _reader(self, files: FileRows) -> FullRowReader:
        return FullRowReader(self.target, files)

    def _numbered(self, rows: pa.Table, numbers: Ints) -> pa.Table:
        return self._conformed(rows).append_column(_NUMBER, pa.array(numbers))

    def _conformed(self, rows: pa.Table) -> pa.Table:
        return conform(rows, self.target.stored_schema, lineage=self.target.format_version > 2)


class RangeWriter(GroupWriter):
    """Writes the rows of a range to new files."""

    def __init__(self, attempt: GroupAttempt, task: RangeTask, order: RowOrder, received: Iterable[pa.Table]) -> None:
        super().__init__(attempt)
        self._received, self._order, self._sample = received, order, task.sample
        self.total_rows = max(1, task.rows)
        assert isinstance(attempt.position_map, NumberedRowsBuilder)
        self._positions = attempt.position_map

    def _row_order(self) -> RowOrder:
        return self._order

    def _rows(self, threads: int = 1) -> Iterator[Batch]:
        for table in self._received:
            places = self._positions.add_numbers(np.asarray(table.column(_NUMBER)))
            rows, share = table.drop_columns([_NUMBER]), table.num_rows / self.total_rows
            yield Batch(rows, np.arange(places.start, places.stop, dtype=np.int64), share)

    def _buffer(self, batches: Iterator[Batch]) -> tuple[list[pa.Table], float]:
        pieces, share = super()._buffer(batches)
        if share == 1.0:  # all rows: in the order of their numbers, equal keys are written as by one task
            pieces = [pieces[at] for at in self._positions.arrange()]
        return pieces, share

    def _sample_keys(self, order: RowOrder) -> pa.Table:
        assert self._sample is not None
        return self._sample


def write_range(
    rewriter: GroupRewriter, order: RowOrder, task: RangeTask, received: Iterable[pa.Table], attempt_id: str
) -> RangeResult:
    """Sort and write the rows of a range, and the map of where they went."""
    positions = NumberedRowsBuilder([])
    attempt = rewriter.attempt(task, f"{attempt_id}-{task.group_id:05d}-{task.number:05d}", positions)
    target = attempt.target
    path = target.new_location(f"{target.file_name(attempt.token)}{MAP_SUFFIX}", task.partition)
    with ExitStack() as written:
        added = RangeWriter(attempt, task, order, received).write(written)
        rows, total = positions.rows, positions.checksum
        try:
            return RangeResult(added, positions.write(target.io, path), rows, total)
        except BaseException:
            target.files.remove([path])
            raise


def _row_groups(
    opened: OpenFile, first_row: int = 0, end_row: int | None = None, possible: RowSelection | None = None
) -> Iterator[RowSelection]:
    """What position deletes leave of the possible rows, row group by row group between two rows of a file."""
    stored = opened.stored
    end = stored.num_rows if end_row is None else end_row
    left = opened.undeleted(RowSelection.all_rows(stored.num_rows) if possible is None else possible)
    for first, count in zip(stored.first_rows.tolist(), stored.row_group_rows.tolist(), strict=True):
        if first_row <= first < end and (found := left.intersect(RowSelection.from_runs([first], [count]))):
            yield found


def _admitted(opened: OpenFile, pruner: Pruner, leading: int) -> RowSelection:
    """The rows of a file that may match by the statistics of row groups and pages.

    All rows of a file that does not store the leading key under its field id: its values may come from elsewhere.
    """
    stores_key = opened.file.format == PARQUET and opened.footer.has_field_ids and leading in opened.footer.leaf_by_id
    if not stores_key:
        return RowSelection.all_rows(opened.stored.num_rows)
    return pruner.examine(opened.source, opened.footer).result().file_selection
