"""The cache of decoded manifests equals reading them, whatever happens to its files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

from floeplan.errors import CorruptMetadataError
from floeplan.metadata import cache as cache_module
from floeplan.metadata.cache import EntriesCache, Segment, cache_directory, open_segment, remove_segment, write_segment
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from tests.support.tables.manifests import Writer, write_manifests

pytestmark = pytest.mark.unit

SCHEMA = Schema(NestedField(1, "region", StringType()))
SPECS = [
    PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "region"), spec_id=0),
    PartitionSpec(PartitionField(77, 1001, IdentityTransform(), "gone"), spec_id=1),
]
UNION = UnionPartitionType.of(SPECS, source_types(SCHEMA))
ONE, TWO = (EntryColumns(stats=frozenset({n}), sizes=frozenset({n})) for n in (1, 2))
FEW = EntryColumns(names=frozenset(), partition=False)


@pytest.fixture
def manifests(tmp_path: Path) -> ManifestListTable:
    """Twelve manifests of two specs with a few entries each, one of them empty."""
    writer = Writer(version=3)
    made = []
    for number in range(12):
        spec_id = number % 2
        field, value = [("region", "string"), ("gone", "long")][spec_id]
        entries = [
            writer.entry(
                f"{number}-{at}",
                partition={field: (f"r{number}" if spec_id == 0 else number) if at else None},
                lower_bounds={1: b"low", 2: bytes([number])},
                split_offsets=[at] * at,
                column_sizes={1: at},
                nan_value_counts={2: at},
            )
            for at in range(number)
        ]
        data = writer.manifest(entries, [writer.field(field, 1000 + spec_id, value)], spec_id)
        made.append((data, {"partition_spec_id": spec_id, "first_row_id": 1000 * number}))
    folder = tmp_path / "table"
    folder.mkdir()
    return read_manifest_list(write_manifests(folder, made, writer))


def check(cache: EntriesCache, manifests: ManifestListTable, columns: EntryColumns, rows: Any = None) -> EntriesTable:
    chosen = None if rows is None else np.array(rows)
    found = cache.read_entries(manifests, UNION, columns, rows=chosen)
    expected = read_entries(manifests, UNION, columns, rows=chosen, live=True)
    found.table.validate(full=True)
    assert {item.name: item.type for item in found.table.schema} == {
        item.name: item.type for item in expected.table.schema
    }
    assert found.table.select(expected.table.column_names).to_pylist() == expected.table.to_pylist()
    assert found.partition_types == expected.partition_types
    return found


def indexes(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.index"))


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes reading a manifest an error, so that only the cache can be used."""

    def forbid() -> None:
        def refuse(*_: Any, **__: Any) -> EntriesTable:
            raise AssertionError("a manifest was read")

        monkeypatch.setattr(cache_module, "read_entries", refuse)

    return forbid


def test_answers_equal_reading_cold_and_warm(tmp_path: Path, manifests: ManifestListTable, no_reading: Any) -> None:
    directory = tmp_path / "cache"
    requests = [(ONE, None), (FEW, [3, 1, 2]), (TWO, None), (EntryColumns(), [11, 0, 5]), (TWO, [7])]
    for columns, rows in requests:
        check(EntriesCache(directory), manifests, columns, rows)
    no_reading()
    cache = EntriesCache(directory)
    for columns, rows in requests:
        check(cache, manifests, columns, rows)


def test_nan_counts_are_read_without_other_statistics(tmp_path: Path, manifests: ManifestListTable) -> None:
    counts = EntryColumns(names=frozenset(), partition=False, nan_counts=frozenset({1, 2}))
    for columns in (counts, replace(counts, stats=frozenset({1})), replace(counts, stats=frozenset({2}))):
        found = check(EntriesCache(tmp_path / "cache"), manifests, columns, [3, 2])
        assert found.array("nan_count.2").to_pylist() == [0, 1, 2, 0, 1]
        assert found.array("nan_count.1").null_count == 5
        assert [f"lower.{field_id}" in found for field_id in (1, 2)] == [i in columns.stats for i in (1, 2)]


@pytest.mark.parametrize("local", [True, False])
def test_small_local_manifests_are_read_rather_than_looked_up(
    tmp_path: Path, manifests: ManifestListTable, monkeypatch: pytest.MonkeyPatch, no_reading: Any, local: bool
) -> None:
    directory = tmp_path / "cache"
    check(EntriesCache(directory), manifests, ONE)
    assert sum(path.stat().st_size for path in indexes(directory)) > manifests.length[1]
    monkeypatch.setattr(cache_module, "SMALL_INDEXES", 0)
    if local:
        monkeypatch.setattr(EntriesCache, "_open", lambda *_: pytest.fail("the cache was looked into"))
    else:
        monkeypatch.setattr(cache_module, "local_path", lambda _: None)
        no_reading()
    check(EntriesCache(directory), manifests, ONE, [1])


def test_small_indexes_are_always_looked_into(tmp_path: Path, manifests: ManifestListTable, no_reading: Any) -> None:
    directory = tmp_path / "cache"
    check(EntriesCache(directory), manifests, ONE)
    no_reading()
    check(EntriesCache(directory), manifests, ONE, [1])


def test_small_local_manifests_are_looked_up_in_indexes_that_are_in_memory(
    tmp_path: Path, manifests: ManifestListTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, reads = EntriesCache(tmp_path / "cache"), list[list[int]]()
    check(cache, manifests, ONE)
    written = indexes(tmp_path)
    monkeypatch.setattr(cache_module, "SMALL_INDEXES", 0)

    def read(*args: Any, **options: Any) -> EntriesTable:
        reads.append(options["rows"].tolist())
        return read_entries(*args, **options)

    monkeypatch.setattr(cache_module, "read_entries", read)
    check(cache, manifests, ONE, [1])
    assert not reads
    check(cache, manifests, TWO, [1])
    assert reads == [[1]], "other columns are read"
    assert indexes(tmp_path) == written, "and not kept: a segment for each small read would have to be merged"


def test_ordinals_count_live_entries_with_and_without_the_cache(tmp_path: Path) -> None:
    """The explorer finds the files of a plan by manifest and ordinal, cached or not."""
    writer = Writer()
    parts = [writer.field("region", 1000, "string")]
    statuses = [[2, 1, 2, 0, 1], [0, 2], [2], [1, 1]]
    made = [
        writer.manifest(
            [writer.entry(f"{n}-{at}", status=s, sequence_number=1) for at, s in enumerate(found)], parts, 0
        )
        for n, found in enumerate(statuses)
    ]
    folder = tmp_path / "table"
    folder.mkdir()
    manifests = read_manifest_list(write_manifests(folder, [(data, {}) for data in made], writer))
    cache = EntriesCache(tmp_path / "cache")
    for cached in (check(cache, manifests, FEW), check(cache, manifests, FEW)):
        assert cached.ints("ordinal").tolist() == [0, 1, 2, 0, 0, 1]
        assert cached.ints("manifest").tolist() == [0, 0, 0, 1, 3, 3]
    everything = read_entries(manifests, UNION, FEW)
    assert everything.ints("ordinal").tolist() == [-1, 0, -1, 1, 2, 0, -1, -1, 0, 1]
    assert everything.live().ints("ordinal").tolist() == [0, 1, 2, 0, 0, 1]


def test_manifests_and_columns_that_are_new_are_added(tmp_path: Path, manifests: ManifestListTable) -> None:
    cache = EntriesCache(tmp_path / "cache")
    check(cache, manifests, ONE, [4, 5, 6])
    check(cache, manifests, ONE, [2, 3, 4, 5, 6, 7])
    assert len(indexes(cache.directory)) == 2
    check(cache, manifests, TWO)
    check(cache, manifests, TWO, [8, 2, 11])
    assert len(indexes(cache.directory)) == 3


def test_a_field_that_only_manifests_can_type_is_typed_by_the_requested_ones(
    tmp_path: Path, manifests: ManifestListTable
) -> None:
    cache = EntriesCache(tmp_path / "cache")
    check(cache, manifests, ONE)
    assert str(check(cache, manifests, ONE, [3]).partition_types[1001]) == "long"
    assert str(check(cache, manifests, ONE, [2]).partition_types[1001]) == "unknown"


def test_a_manifest_that_is_listed_differently_is_another(tmp_path: Path, manifests: ManifestListTable) -> None:
    """An upgrade to v3 assigns old manifests a first row id, which their entries inherit."""
    cache = EntriesCache(tmp_path / "cache")
    check(cache, manifests, ONE)
    manifests.first_row_id[3] = 5
    manifests.sequence_number[4] = 9
    check(cache, manifests, ONE)


@pytest.mark.parametrize("suffix", [".arrow", ".index"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove", "garbage"])
def test_damaged_files_are_rebuilt(tmp_path: Path, manifests: ManifestListTable, suffix: str, damage: str) -> None:
    directory = tmp_path / "cache"
    check(EntriesCache(directory), manifests, ONE)
    [victim] = directory.rglob(f"*{suffix}")
    content = bytearray(victim.read_bytes())
    at = content.index(b"low") if suffix == ".arrow" else len(content) // 2
    content[at] ^= 0x40
    changed = {"flip": content, "truncate": content[: len(content) // 2], "empty": b"", "garbage": os.urandom(500)}
    victim.unlink()
    if damage != "remove":
        victim.write_bytes(changed[damage])
    check(EntriesCache(directory), manifests, ONE)
    assert len(indexes(directory)) == 1
    check(EntriesCache(directory), manifests, ONE)


def test_columns_of_another_type_are_not_mixed_in(tmp_path: Path, manifests: ManifestListTable) -> None:
    cache = EntriesCache(tmp_path / "cache")
    check(cache, manifests, ONE, [3, 4])
    [index] = indexes(cache.directory)
    segment = open_segment(index)
    columns = {name: segment.column(name) for name in segment.checksums}
    columns["record_count"] = columns["record_count"].cast(pa.string())
    write_segment(index.parent, Segment.in_memory(columns, segment.manifests, segment.types))
    remove_segment(index)
    check(EntriesCache(cache.directory), manifests, ONE, [3, 4, 5])


def test_many_small_segments_are_merged(
    tmp_path: Path, manifests: ManifestListTable, monkeypatch: pytest.MonkeyPatch, no_reading: Any
) -> None:
    monkeypatch.setattr(cache_module, "MAX_SEGMENTS", 4)
    cache = EntriesCache(tmp_path / "cache")
    for row in range(12):
        check(cache, manifests, ONE, [row])
        assert len(indexes(cache.directory)) <= 5
    no_reading()
    check(EntriesCache(cache.directory), manifests, ONE, list(range(11, -1, -1)))


def test_too_many_different_segments_lose_the_oldest(
    tmp_path: Path, manifests: ManifestListTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MAX_SEGMENTS", 3)
    cache = EntriesCache(tmp_path / "cache")
    for field in range(1, 8):
        check(cache, manifests, EntryColumns(stats=frozenset({field})))
        assert len(indexes(cache.directory)) <= 4


def test_the_cache_stays_within_its_size(tmp_path: Path, manifests: ManifestListTable) -> None:
    generous, directory = EntriesCache(tmp_path / "a"), tmp_path / "b"
    check(generous, manifests, ONE, [9])
    one = sum(path.stat().st_size for path in (tmp_path / "a").rglob("*.*"))
    cache = EntriesCache(directory, max_bytes=3 * one)
    for row in range(12):
        check(cache, manifests, ONE, [row])
    kept = indexes(directory)
    assert 1 <= len(kept) <= 3
    assert len(list(directory.rglob("*.arrow"))) == len(kept)


def test_recently_used_segments_stay(tmp_path: Path, manifests: ManifestListTable) -> None:
    cache = EntriesCache(tmp_path / "cache")
    check(cache, manifests, ONE, [9])
    [first] = indexes(cache.directory)
    check(cache, manifests, ONE, [10])
    [second] = set(indexes(cache.directory)) - {first}
    for at, path in enumerate([first, second]):
        os.utime(path, (1000 + at, 1000 + at))
    check(cache, manifests, ONE, [9])
    EntriesCache(cache.directory, max_bytes=1)._evict()
    assert indexes(cache.directory) == [first]


def test_leftovers_of_a_crashed_writer_are_swept(tmp_path: Path, manifests: ManifestListTable) -> None:
    cache = EntriesCache(tmp_path / "cache")
    check(cache, manifests, ONE)
    [index] = indexes(cache.directory)
    old, young = index.parent / "old.arrow", index.parent / "young.arrow.77.partial"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (0, time.time() - 7200))
    check(cache, manifests, TWO)
    assert not old.exists()
    assert young.exists()


def test_a_read_only_cache_is_ignored(tmp_path: Path, manifests: ManifestListTable) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    check(EntriesCache(in_the_way), manifests, ONE)
    check(EntriesCache(in_the_way / "below"), manifests, ONE)


def test_damage_in_the_table_is_not_hidden(tmp_path: Path, manifests: ManifestListTable) -> None:
    cache = EntriesCache(tmp_path / "cache")
    check(cache, manifests, ONE, [1, 2])
    for path in (tmp_path / "table").glob("m*.avro"):
        path.write_bytes(b"Obj\x01")
    with pytest.raises(CorruptMetadataError):
        cache.read_entries(manifests, UNION, ONE)
    assert len(cache.read_entries(manifests, UNION, ONE, rows=np.array([1, 2]))) == 3


def test_nothing_to_read_touches_nothing(tmp_path: Path, manifests: ManifestListTable) -> None:
    check(EntriesCache(tmp_path / "cache"), manifests, ONE, np.zeros(0, dtype=np.int64))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_type_that_one_merged_segment_knows_is_known(
    order: tuple[int, int],
    tmp_path: Path,
    manifests: ManifestListTable,
    monkeypatch: pytest.MonkeyPatch,
    no_reading: Any,
) -> None:
    """Manifests of spec 0 lack the type of a dropped column's field, those of spec 1 have it."""
    cache = EntriesCache(tmp_path / "cache")
    for spec_id in order:
        check(cache, manifests, ONE, [spec_id + 2, spec_id + 4])
    monkeypatch.setattr(cache_module, "MAX_SEGMENTS", 2)
    check(cache, manifests, ONE, [order[1] + 6])
    assert len(indexes(tmp_path / "cache")) == 1
    no_reading()
    found = cache.read_entries(manifests, UNION, ONE, rows=np.array([3, 5]))
    assert found.array("partition.1001").to_pylist() == [None, 3, 3, None, 5, 5, 5, 5]


def test_threads_share_a_cache(tmp_path: Path, manifests: ManifestListTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_SEGMENTS", 2)
    cache = EntriesCache(tmp_path / "cache", max_bytes=20_000)
    requests = [(columns, [row % 12, (row * 5) % 12]) for row in range(24) for columns in (ONE, TWO, FEW)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda request: check(cache, manifests, *request), requests))


PROCESS = """
import sys, numpy as np
from dataclasses import replace
from pathlib import Path
from tests.unit.test_entries_cache import ONE, TWO, check
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.manifests.manifest_list import read_manifest_list
manifests = read_manifest_list(sys.argv[1])
for turn in range(15):
    cache = EntriesCache(Path(sys.argv[2]), max_bytes=30_000)
    check(cache, manifests, (ONE, TWO)[turn % 2], [turn % 12, turn * 7 % 12])
"""


def test_processes_share_a_folder(tmp_path: Path, manifests: ManifestListTable) -> None:
    arguments = [sys.executable, "-c", PROCESS, str(tmp_path / "table" / "list.avro"), str(tmp_path / "cache")]
    root = Path(__file__).resolve().parents[2]
    running = [subprocess.Popen(arguments, cwd=root, stderr=subprocess.PIPE) for _ in range(2)]
    for process in running:
        assert process.wait() == 0, process.communicate()[1].decode()
        process.communicate()


def test_the_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOEPLAN_CACHE", str(tmp_path / "here"))
    assert cache_directory() == tmp_path / "here"
    monkeypatch.delenv("FLOEPLAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "floeplan"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "floeplan"


def test_a_list_that_is_read_again_and_again_is_looked_up_once(manifests: ManifestListTable, tmp_path: Path) -> None:
    cache = EntriesCache(tmp_path / "cache")
    check(cache, manifests, ONE, [3, 5, 7, 9])
    segment = next(iter(cache._segments.values()))
    for _ in range(6):
        check(cache, manifests, ONE, [9, 3])
    located = segment._located
    assert located is not None
    assert located.at is not None
    assert (located.at >= 0).nonzero()[0].tolist() == [3, 5, 7, 9]
    other = manifests.take(np.array([5, 4, 3]))
    for _ in range(2):
        check(cache, other, ONE, [2, 0, 1])
