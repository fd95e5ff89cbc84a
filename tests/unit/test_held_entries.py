"""Entries held in memory equal those of their source, whichever manifests are read and in which order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import StaticTable

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.held import EntriesMemory
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.reader import read_entries
from floeplan.snapshot.reader import SnapshotReader
from tests.support.tables.archive import write_evolved_archive

pytestmark = pytest.mark.unit

STATS = EntryColumns(stats=frozenset({1, 3}))
FEW = EntryColumns(frozenset({"split_offsets"}), partition=False)
PLENTY = 100_000_000


class Counted:
    """Reads manifests, and counts the reads; reading a manifest of ``broken`` fails."""

    def __init__(self, *broken: int) -> None:
        self.reads: list[list[int]] = []
        self.broken = set(broken)

    def read_entries(self, manifests: Any, partition: Any, columns: EntryColumns, **options: Any) -> EntriesTable:
        rows = options["rows"].tolist()
        self.reads.append(rows)
        if self.broken & set(rows):
            raise CorruptMetadataError("damaged")
        return read_entries(manifests, partition, columns, **options)


@pytest.fixture
def snapshot(tmp_path: Path) -> SnapshotReader:
    """Twelve manifests of three specs."""
    table = StaticTable.from_metadata(str(write_evolved_archive(tmp_path, 12, 5)))
    return SnapshotReader.open(table, table.current_snapshot())


def check(memory: EntriesMemory, snapshot: SnapshotReader, rows: list[int], columns: EntryColumns = STATS) -> None:
    chosen = np.array(rows, dtype=np.int64)
    found = memory.of("key").read_entries(snapshot.manifests, snapshot.union, columns, rows=chosen)
    expected = read_entries(snapshot.manifests, snapshot.union, columns, rows=chosen)
    found.table.validate(full=True)
    assert found.table.select(expected.table.column_names).equals(expected.table.combine_chunks())


def test_every_read_equals_the_source_before_and_after_all_manifests_are_held(snapshot: SnapshotReader) -> None:
    source = Counted()
    memory = EntriesMemory(source, PLENTY)
    reads = [[3], [3, 4], [11, 0, 5], [1], [2], [6], [7], [8], [9]]
    for rows in reads:
        check(memory, snapshot, rows)
    assert source.reads == [*reads, list(range(12))]
    for rows in ([3], [5, 4, 3], list(range(12)), [0, 11], [2, 2], []):
        check(memory, snapshot, rows)
    assert len(source.reads) == len(reads) + 1
    check(memory, snapshot, [5], FEW)
    assert source.reads[-1] == [5], "other columns are another table"


def test_a_manifest_that_cannot_be_read_fails_only_those_who_need_it(snapshot: SnapshotReader) -> None:
    memory = EntriesMemory(Counted(11), PLENTY)
    for rows in range(11):
        check(memory, snapshot, [rows])
    with pytest.raises(CorruptMetadataError):
        check(memory, snapshot, [0, 11])


@pytest.mark.parametrize("most", [0, 1, 6_000])
def test_what_does_not_fit_is_read_from_the_source(snapshot: SnapshotReader, most: int) -> None:
    source = Counted()
    memory = EntriesMemory(source, most)
    for turn in range(30):
        check(memory, snapshot, [turn % 12])
    assert list(range(12)) not in source.reads
    assert len(source.reads) >= 27


def test_threads_read_while_tables_are_replaced(snapshot: SnapshotReader) -> None:
    memory = EntriesMemory(Counted(), 40_000)
    orders = [np.random.default_rng(seed).permutation(12)[: 1 + seed % 5].tolist() for seed in range(200)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda at: check(memory, snapshot, orders[at], (STATS, FEW)[at % 2]), range(200)))
