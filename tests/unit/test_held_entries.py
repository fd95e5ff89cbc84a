"""Entries held in memory equal those of their source, whichever manifests are read and in which order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg import types as t
from pyiceberg.table import StaticTable

from floeplan.errors import CorruptMetadataError
from floeplan.metadata import held
from floeplan.metadata.held import EntriesMemory
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.stats import file_stats, partition_stats
from floeplan.predicate.build import columns, or_
from floeplan.predicate.ir import Cmp, CmpOp, Column, InList, IrExpr, IsNull
from floeplan.predicate.stats import Bound, StatsTable, Tri
from floeplan.schemas import fields_by_id
from floeplan.snapshot.effects import Evaluation, LeafAnswers, Predicate
from floeplan.snapshot.passes import evaluate_manifests
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
        return read_entries(manifests, partition, columns, live=True, **options)


@pytest.fixture
def snapshot(tmp_path: Path) -> SnapshotReader:
    """Twelve manifests of three specs."""
    table = StaticTable.from_metadata(str(write_evolved_archive(tmp_path, 12, 5)))
    return SnapshotReader.open(table, table.current_snapshot())


def check(memory: EntriesMemory, snapshot: SnapshotReader, rows: list[int], columns: EntryColumns = STATS) -> None:
    chosen = np.array(rows, dtype=np.int64)
    found = memory.of("key").read_entries(snapshot.manifests, snapshot.union, columns, rows=chosen)
    expected = read_entries(snapshot.manifests, snapshot.union, columns, rows=chosen, live=True)
    found.table.validate(full=True)
    assert found.table.select(expected.table.column_names).equals(expected.table.combine_chunks())


def test_every_read_equals_the_source_before_and_after_all_manifests_are_held(snapshot: SnapshotReader) -> None:
    source = Counted()
    memory = EntriesMemory(source, PLENTY)
    reads = [[3], [3, 4], [11, 0, 5], [1], [2], [6], [7], [8], [9]]
    for rows in reads:
        check(memory, snapshot, rows)
    assert source.reads == [*reads[:-1], list(range(12))], "the last read is of all manifests"
    for rows in ([3], [5, 4, 3], list(range(12)), [0, 11], [2, 2], []):
        check(memory, snapshot, rows)
    assert len(source.reads) == len(reads)
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


def test_neighbours_are_held_where_all_manifests_do_not_fit(
    snapshot: SnapshotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "_NEARBY", 2)
    monkeypatch.setattr(EntriesMemory, "fit", lambda *_, tables=1: tables > 1)
    source = Counted()
    memory = EntriesMemory(source, PLENTY)
    for row in range(1, 10):
        check(memory, snapshot, [row])
    assert source.reads == [*([row] for row in range(1, 9)), [8, 9, 10, 11]]
    for rows in ([9], [8, 9], [9, 8], [9, 11], [8]):
        check(memory, snapshot, rows)
    assert len(source.reads) == 9, "they are held"
    check(memory, snapshot, [3, 9])
    assert source.reads[9:] == [[3, 9]], "these are no neighbours"


def test_threads_read_while_tables_are_replaced(snapshot: SnapshotReader) -> None:
    memory = EntriesMemory(Counted(), 40_000)
    orders = [np.random.default_rng(seed).permutation(12)[: 1 + seed % 5].tolist() for seed in range(200)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda at: check(memory, snapshot, orders[at], (STATS, FEW)[at % 2]), range(200)))


def test_statistics_decoded_once_are_those_of_every_slice(snapshot: SnapshotReader) -> None:
    memory, few = EntriesMemory(Counted(), PLENTY), EntryColumns(stats=frozenset(columns_of(snapshot)))
    read = memory.of("key").read_entries
    read(snapshot.manifests, snapshot.union, few, rows=np.arange(12))
    for rows in ([3], [3, 4, 5], [0], [11], list(range(12)), [5, 4]):
        found = read(snapshot.manifests, snapshot.union, few, rows=np.array(rows))
        assert (found.slice_of is None) == (rows == [5, 4]), "consecutive manifests are a slice"
        fresh = EntriesTable(found.table.combine_chunks(), found.partition_types)
        same_stats(file_stats(found, columns_of(snapshot).values()), file_stats(fresh, columns_of(snapshot).values()))
        same_stats(partition_stats(found, snapshot.union.fields), partition_stats(fresh, snapshot.union.fields))


def test_repeated_leaves_are_answered_once_for_every_slice(snapshot: SnapshotReader) -> None:
    memory, wanted = EntriesMemory(Counted(), PLENTY), EntryColumns(stats=frozenset(columns_of(snapshot)))
    read = partial(memory.of("key").read_entries, snapshot.manifests, snapshot.union, wanted)
    read(rows=np.arange(12))
    region = columns_of(snapshot)[2]
    leaves = [*(IsNull(column) for column in columns_of(snapshot).values()), Cmp(region, CmpOp.EQ, "eu")]
    for rows in ([3], [3, 4, 5], [0], [11], list(range(12)), [5, 4]):
        found = read(rows=np.array(rows))
        fresh = EntriesTable(found.table.combine_chunks(), found.partition_types)
        for leaf in leaves:
            predicate = Predicate(leaf, columns(leaf), snapshot.union)
            mine, other = LeafAnswers(predicate, found), LeafAnswers(predicate, fresh)
            for one, two in ((mine.by_partition, other.by_partition), (mine.by_bounds, other.by_bounds)):
                known, expected = one(leaf), two(leaf)
                np.testing.assert_array_equal(known.states(), expected.states())
                np.testing.assert_array_equal(known.may_false, expected.may_false)
                # A slice without the field cannot tell that IS NULL is never NULL.
                assert (known.may_null <= expected.may_null).all()
    part = read(rows=np.array([3])).slice_of
    assert part is not None
    kept = part.remember(leaves[-1], lambda: pytest.fail("it is known"))
    assert kept is not None
    assert len(kept[0].may_true) == len(part.whole)


def same_stats(left: StatsTable, right: StatsTable) -> None:
    assert (left.length, left.columns.keys()) == (right.length, right.columns.keys())
    for field_id, mine in left.columns.items():
        other = right.columns[field_id]
        for name in ("may_null", "may_nan", "may_value"):
            assert getattr(mine, name).tolist() == getattr(other, name).tolist()
        assert (listed(mine.lower), listed(mine.upper)) == (listed(other.lower), listed(other.upper))
        assert (mine.lower is mine.upper) == (other.lower is other.upper)


# --- statistics of manifests


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics pay for small snapshots too, and are computed in several slices."""
    monkeypatch.setattr(held, "_LEAST_EVALUATED", 0)
    monkeypatch.setattr(held, "_SLICE", 17)


def columns_of(snapshot: SnapshotReader) -> dict[int, Column]:
    fields = fields_by_id(snapshot.metadata.schema()).values()
    return {one.field_id: Column(one.field_id, one.field_type, (one.name,)) for one in fields}  # type: ignore[arg-type]


def bounds_of(memory: EntriesMemory, snapshot: SnapshotReader, *evaluated: int) -> StatsTable | None:
    """What is known of the manifests after a scan has evaluated the entries of some."""
    columns, entries = columns_of(snapshot), memory.of("key")
    if evaluated:
        few = EntryColumns(stats=frozenset(columns))
        entries.read_entries(snapshot.manifests, snapshot.union, few, rows=np.array(evaluated))
    return entries.manifest_bounds(snapshot.manifests, snapshot.union, columns)


def listed(bound: Bound | None) -> list[Any]:
    assert bound is not None
    values = bound.values.tolist() if isinstance(bound.values, np.ndarray) else bound.values.to_pylist()
    return [value if valid else None for value, valid in zip(values, bound.valid.tolist(), strict=True)]


@pytest.mark.usefixtures("_small")
def test_bounds_of_a_manifest_are_those_of_its_live_files(snapshot: SnapshotReader) -> None:
    # One manifest counts as one of deletes, and one has no live files.
    content, added = np.full(12, DATA), snapshot.manifests.added_files.copy()
    content[4], added[7] = DELETES, 0
    manifests = replace(snapshot.manifests, content=content, added_files=added)
    found = bounds_of(EntriesMemory(Counted(), PLENTY), replace(snapshot, manifests=manifests), *range(12))
    assert found is not None
    columns = columns_of(snapshot)
    for row in range(12):
        entries = read_entries(manifests, snapshot.union, EntryColumns(stats=frozenset(columns)), rows=np.array([row]))
        files = file_stats(entries.live(), columns.values())
        for field_id, stats in found.columns.items():
            of_files = files.columns[field_id]
            ends = [listed(stats.lower)[row], listed(stats.upper)[row]]
            if row in (4, 7):
                assert all(may[row] for may in (stats.may_value, stats.may_null, stats.may_nan)), "nothing is known"
                assert ends == [None, None]
            else:
                assert ends == [min(listed(of_files.lower)), max(listed(of_files.upper))]
                assert (stats.may_value[row], stats.may_null[row]) == (True, False)
    assert found.columns.keys() == columns.keys()


@pytest.mark.usefixtures("_small")
def test_bounds_are_computed_once_scans_have_evaluated_as_many_entries(snapshot: SnapshotReader) -> None:
    source = Counted()
    memory = EntriesMemory(source, PLENTY)
    assert bounds_of(memory, snapshot) is None
    assert bounds_of(memory, snapshot, *range(11)) is None
    assert bounds_of(memory, snapshot, 11) is not None
    reads = len(source.reads)
    assert bounds_of(memory, snapshot) is not None
    assert len(source.reads) == reads, "they are kept"


@pytest.mark.usefixtures("_small")
def test_a_manifest_that_cannot_be_read_leaves_its_snapshot_without_bounds(snapshot: SnapshotReader) -> None:
    memory = EntriesMemory(Counted(11), PLENTY)
    assert bounds_of(memory, snapshot, *range(11)) is None
    assert bounds_of(memory, snapshot, 0, 1) is None


def test_small_snapshots_are_evaluated_entry_by_entry(snapshot: SnapshotReader) -> None:
    memory = EntriesMemory(Counted(), PLENTY)
    assert bounds_of(memory, snapshot, *range(12)) is None


# --- answers for manifests


@pytest.mark.usefixtures("_small")
def test_remembered_answers_equal_those_of_the_statistics(snapshot: SnapshotReader) -> None:
    """Also where bounds become known between two plans, and for every combination of leaves."""
    memory = EntriesMemory(Counted(), PLENTY)
    region, ts = columns_of(snapshot)[2], columns_of(snapshot)[3]
    day = 1_640_995_200_000_000
    leaves: list[IrExpr] = [
        IsNull(ts, negated=True),
        Cmp(region, CmpOp.EQ, "eu"),
        InList(region, ("eu", "us")),
        *(Cmp(ts, op, day * (100 + n) // 100) for op in (CmpOp.GE, CmpOp.LT) for n in range(3)),
    ]
    for _ in range(2):
        bounds = bounds_of(memory, snapshot)
        for leaf in (*leaves, or_(leaves[0], leaves[1]), or_(leaves[1], leaves[3])):
            predicate = Predicate(leaf, columns(leaf), snapshot.union)
            for known in (bounds, None):
                given = (predicate, snapshot.manifests, known, None)
                found = evaluate_manifests(*given, memory.of("key").remember)
                assert masks(found) == masks(evaluate_manifests(*given))
        bounds_of(memory, snapshot, *range(12))
    assert bounds is not None, "the second plans had bounds"


def masks(evaluation: Evaluation) -> list[list[Any]]:
    parts = [evaluation.tri, evaluation.parts, *filter(None, [evaluation.by_partition])]
    return [[tri.may_true.tolist(), tri.may_false.tolist(), tri.may_null.tolist()] for tri in parts]


def test_answers_are_computed_once_for_a_snapshot_a_leaf_and_its_statistics() -> None:
    memory, asked = EntriesMemory(Counted(), PLENTY), list[str]()
    column = Column(1, t.LongType(), ("id",))

    def answer(name: str) -> tuple[Tri, Tri]:
        asked.append(name)
        return Tri.unknown(np.ones(3, dtype=np.bool_)), Tri.unknown(np.ones(3, dtype=np.bool_))

    for _ in range(2):
        for snapshot in ("a", "b"):
            for bounded in (False, True):
                for value in (1, 2):
                    name = f"{snapshot} {bounded} {value}"
                    memory.of(snapshot).remember(Cmp(column, CmpOp.EQ, value), bounded, partial(answer, name))
    assert len(asked) == len(set(asked)) == 8
