"""The root manifest: every spec in one file, equal plans, and partition values that bounds cannot give."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, MonthTransform, TruncateTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from floeplan.cli.main import main
from floeplan.errors import BadInputError, CorruptMetadataError, UnknownFileError
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns, new_entries
from floeplan.metadata.manifests.manifest_list import ManifestListTable, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.stats import file_stats
from floeplan.metadata.root import HEADER_KEY, RootManifest
from floeplan.metadata.root_writer import write_root
from floeplan.parquet.prune.request import PruneRequest
from floeplan.partition.recover import Obstacle, recover_tuples
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.tables.layouts import SNAPSHOT_ID, Layout, rows_of

pytestmark = pytest.mark.unit

DAY_MICROS = 86_400_000_000
DAY, BUCKET, PREFIX, MONTH = 1000, 1001, 1002, 1003
LAYOUT = Layout(
    Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "ts", TimestampType()),
        NestedField(3, "nested.name", StringType()),
    ),
    (
        PartitionSpec(
            PartitionField(2, DAY, DayTransform(), "ts_day"),
            PartitionField(1, BUCKET, BucketTransform(8), "id_bucket"),
            PartitionField(3, PREFIX, TruncateTransform(2), "prefix"),
            spec_id=0,
        ),
        PartitionSpec(PartitionField(2, MONTH, MonthTransform(), "ts_month"), spec_id=3),
    ),
)


def read_root(path: str, union: UnionPartitionType) -> EntriesTable:
    """Every entry of a root manifest with all columns."""
    root = RootManifest(path)
    return root.read_entries(root.manifests, union, EntryColumns(WHOLE))


def long(value: int) -> bytes:
    return struct.pack("<q", value)


def stats(bounds: dict[int, tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "lower_bounds": {key: lower for key, (lower, _) in bounds.items()},
        "upper_bounds": {key: upper for key, (_, upper) in bounds.items()},
        "value_counts": dict.fromkeys(bounds, 10),
        "null_value_counts": dict.fromkeys(bounds, 0),
    }


def file(day: int, bucket: int, prefix: str, bounds: dict[int, tuple[bytes, bytes]] | None = None) -> dict[str, Any]:
    row = {f"partition.{DAY}": day, f"partition.{BUCKET}": bucket, f"partition.{PREFIX}": prefix}
    return row | ({} if bounds is None else stats(bounds))


def rooted(folder: Path, rows: list[dict[str, Any]], layout: Layout = LAYOUT, **options: Any) -> tuple[Table, str]:
    table = layout.write_table(folder / "table", layout.entries(rows))
    path = str(folder / "root.parquet")
    write_root(table, path, table.current_snapshot(), **options)
    return table, path


def entries_of(table: Table, layout: Layout = LAYOUT) -> EntriesTable:
    manifests = read_manifest_list(table.current_snapshot().manifest_list)
    return read_entries(manifests, layout.union, EntryColumns(WHOLE))


TIGHT = {
    1: (long(5), long(5)),
    2: (long(3 * DAY_MICROS), long(4 * DAY_MICROS - 1)),
    3: (b"apple", b"apricot"),
}
CASES = {
    "tight bounds": (TIGHT, {DAY: Obstacle.NONE, BUCKET: Obstacle.NONE, PREFIX: Obstacle.NONE}),
    "bucket": (TIGHT | {1: (long(5), long(6))}, {BUCKET: Obstacle.BUCKET}),
    "no statistics": (None, dict.fromkeys((DAY, BUCKET, PREFIX), Obstacle.NULLS)),  # unknown count
    "loose bounds": (
        TIGHT | {2: (long(3 * DAY_MICROS), long(4 * DAY_MICROS)), 3: (b"ap", b"b")},
        {DAY: Obstacle.SPANS, PREFIX: Obstacle.SPANS},
    ),
    "truncated bounds": (TIGHT | {3: (b"ap", b"aq")}, {PREFIX: Obstacle.TRUNCATED}),
}


@pytest.mark.parametrize(("bounds", "obstacles"), CASES.values(), ids=CASES)
def test_bounds_alone_do_not_give_the_tuple_and_the_union_tuple_always_does(
    tmp_path: Path, bounds: dict[int, tuple[bytes, bytes]] | None, obstacles: dict[int, Obstacle]
) -> None:
    _, path = rooted(tmp_path, [file(3, 5, "ap", bounds)])
    root = RootManifest(path)
    columns = EntryColumns(frozenset(), stats=frozenset({1, 2, 3}))
    entries = root.read_entries(root.manifests, LAYOUT.union, columns)
    sources = [Column(f.field_id, f.field_type, (f.name,)) for f in LAYOUT.schema.fields]
    recovered = recover_tuples(LAYOUT.union.spec(0).fields, file_stats(entries, sources))
    assert {key: recovered[key].obstacle[0] for key in obstacles} == obstacles
    tuples = [entries.array(f"partition.{key}").to_pylist() for key in (DAY, BUCKET, PREFIX)]
    assert tuples == [[3], [5], ["ap"]]


def test_the_file_holds_what_the_manifests_hold(tmp_path: Path) -> None:
    rows = [
        file(3, 5, "ap", TIGHT) | {"split_offsets": [4], "key_metadata": b"k", "column_sizes": {1: 7, 999: 8}},
        file(3, 6, "é") | {"status": 0, "snapshot_id": 5, "sequence_number": 2, "file_sequence_number": 2},
        {"spec_id": 3, f"partition.{MONTH}": None, "nan_value_counts": {}},
        {"spec_id": 3, f"partition.{MONTH}": 7, "content": 2, "equality_ids": [1], "lower_bounds": {1: b"?"}},
        file(9, 1, "zz") | {"status": 2, "sequence_number": 3},
    ]
    table, path = rooted(tmp_path, rows)
    assert rows_of(read_root(path, LAYOUT.union)) == rows_of(entries_of(table).live())
    listed = RootManifest(path).manifests
    assert sorted(zip(listed.spec_id.tolist(), listed.content.tolist(), strict=True)) == [(0, 0), (3, 0), (3, 1)]


def grid() -> list[dict[str, Any]]:
    tuples = [(day, bucket) for day in range(10) for bucket in range(8)]
    starts = [long(day * DAY_MICROS) for day in range(10)]
    rows = [file(day, bucket, "ap", {2: (starts[day], starts[day])}) for day, bucket in tuples]
    return rows + [{"spec_id": 3, f"partition.{MONTH}": month} for month in range(5)]


OPTIONS = ScanOptions(footers=False, cache=False, report=False)


@pytest.mark.parametrize("where", ["id = 7", "ts < TIMESTAMP '1970-01-03'", "id IN (1, 2) AND ts IS NOT NULL", None])
def test_a_plan_from_the_root_is_the_plan_from_the_manifests(tmp_path: Path, where: str | None) -> None:
    table, path = rooted(tmp_path, grid(), row_group_entries=4)
    plan = plan_scan(table, where, options=OPTIONS)
    from_root = plan_scan(table, where, options=replace(OPTIONS, root=path))
    assert {f.path: f.to_dict() for f in from_root.files} == {f.path: f.to_dict() for f in plan.files}
    assert from_root.summary.files_total == plan.summary.files_total == 85
    assert from_root.summary.rows_total == plan.summary.rows_total


def test_row_groups_are_manifests_that_prune(tmp_path: Path) -> None:
    table, path = rooted(tmp_path, grid(), row_group_entries=8)
    summary = plan_scan(table, "ts < TIMESTAMP '1970-01-03'", options=replace(OPTIONS, root=path)).summary
    assert (summary.manifests_kept, summary.manifests_total) == (3, 11)
    by_bucket = [row | {f"partition.{DAY}": 0} for row in grid()[:80]]
    table, path = rooted(tmp_path / "buckets", by_bucket, row_group_entries=10)
    plan = plan_scan(table, "id = 7", options=replace(OPTIONS, root=path))
    assert (plan.summary.manifests_kept, plan.summary.manifests_total, len(plan.files)) == (1, 8, 10)


def test_parquet_statistics_of_the_ranges_prune_bucket_fields_too(tmp_path: Path) -> None:
    by_bucket = [row | {f"partition.{DAY}": 0} for row in grid()[:80]]
    _, path = rooted(tmp_path, by_bucket, row_group_entries=10)
    where = "partition_ranges.id_bucket.lower <= 3 AND partition_ranges.id_bucket.upper >= 3"
    pruned = PruneRequest(path).with_predicate(where).prune()
    assert (len(pruned.row_groups), pruned.row_groups_total, pruned.rows_selected) == (1, 8, 10)


def ranges(folder: Path, rows: list[dict[str, Any]], layout: Layout = LAYOUT) -> list[dict[str, Any]]:
    _, path = rooted(folder, rows, layout)
    found = pq.read_table(path, columns=["file_path", "partition_ranges"]).to_pylist()
    return [row["partition_ranges"] for row in sorted(found, key=lambda row: row["file_path"])]


def test_ranges_are_exact_under_the_own_spec_and_from_bounds_under_others(tmp_path: Path) -> None:
    january = {1: (long(1), long(9)), 2: (long(31 * DAY_MICROS - 1), long(33 * DAY_MICROS)), 3: (b"abc", b"b")}
    own, other, unknown, loose = ranges(
        tmp_path,
        [
            file(3, 5, "ap"),
            {"spec_id": 3, f"partition.{MONTH}": 0} | stats(january),
            {"spec_id": 3, f"partition.{MONTH}": None},
            file(30, 2, "ab", january),
        ],
    )
    assert [own[name]["lower"] for name in ("id_bucket", "prefix")] == [5, "ap"]
    assert all(own[name]["lower"] == own[name]["upper"] for name in own)
    assert own["ts_month"] == {"lower": None, "upper": None}
    assert (str(other["ts_day"]["lower"]), str(other["ts_day"]["upper"])) == ("1970-01-31", "1970-02-03")
    assert other["prefix"] == {"lower": "ab", "upper": "b"}
    assert other["id_bucket"] == {"lower": None, "upper": None}
    assert other["ts_month"] == {"lower": 0, "upper": 0}
    assert {end for name in unknown.values() for end in name.values()} == {None}
    assert loose["ts_month"] == {"lower": 0, "upper": 1}


def test_column_statistics_are_typed_and_keep_their_bytes(tmp_path: Path) -> None:
    rows = [file(3, 5, "ap", TIGHT), file(3, 5, "ap", {1: (b"\x05\x00\x00\x00", b"??"), 77: (b"raw", b"raw")})]
    table, path = rooted(tmp_path, rows)
    stats_of = {row["file_path"]: row["stats"] for row in pq.read_table(path).to_pylist()}
    first, second = stats_of["f0.parquet"], stats_of["f1.parquet"]
    assert (first["id"]["lower"], first["id"]["value_count"], first["id"]["null_count"]) == (5, 10, 0)
    assert str(first["ts"]["lower"]) == "1970-01-04 00:00:00"
    assert (first["nested.name"]["upper"], first["nested.name"]["upper_bytes"]) == ("apricot", b"apricot")
    assert (second["id"]["lower"], second["id"]["upper"], second["id"]["upper_bytes"]) == (5, None, b"??")
    assert "lower" not in second["field_77"]
    assert second["field_77"]["lower_bytes"] == b"raw"
    assert rows_of(read_root(path, LAYOUT.union)) == rows_of(entries_of(table))


def test_the_file_names_fields_as_manifests_do(tmp_path: Path) -> None:
    _, path = rooted(tmp_path, [file(3, 5, "ap")])
    schema = pq.ParquetFile(path).schema_arrow
    ids = {name: schema.field(name).metadata[b"PARQUET:field_id"] for name in ("status", "file_path", "spec_id")}
    assert ids == {"status": b"0", "file_path": b"100", "spec_id": b"141"}
    partition = schema.field("partition")
    assert partition.metadata[b"PARQUET:field_id"] == b"102"
    found = {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in partition.type}
    assert found == {"ts_day": DAY, "id_bucket": BUCKET, "prefix": PREFIX, "ts_month": MONTH}


def test_a_partition_field_whose_source_no_schema_has_keeps_its_values(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(99, 1000, IdentityTransform(), "lost"), spec_id=0)
    layout = Layout(LAYOUT.schema, (spec,))
    columns = {name: layout.entries([{}]).array(name) for name in layout.entries([{}]).table.schema.names}
    columns["partition.1000"] = pa.array(["x"])
    typed = new_entries(columns, layout.union, {1000: StringType()})
    table = layout.write_table(tmp_path / "table", typed)
    path = str(tmp_path / "root.parquet")
    write_root(table, path, table.current_snapshot())
    assert read_root(path, layout.union).array("partition.1000").to_pylist() == ["x"]
    with pytest.raises(CorruptMetadataError, match=r"type of partition field .* is not known"):
        layout.write(tmp_path, replace(typed, partition_types=layout.entries([{}]).partition_types))


def test_a_table_without_data_has_an_empty_root(tmp_path: Path) -> None:
    table, path = rooted(tmp_path, [])
    assert write_root(table, path, None).entries == 0
    assert len(read_root(path, LAYOUT.union)) == 0
    assert len(RootManifest(path).manifests) == 0


def test_a_root_of_something_else_is_refused(tmp_path: Path) -> None:
    table, path = rooted(tmp_path, [file(3, 5, "ap")])
    options = replace(OPTIONS, root=path)
    other = table.metadata.model_copy(update={"table_uuid": "00000000-0000-4000-8000-000000000000"})
    with pytest.raises(BadInputError, match=rf"of snapshot {SNAPSHOT_ID} of table .*write it again"):
        RootManifest(path).check(other, SNAPSHOT_ID)
    with pytest.raises(BadInputError, match="not of snapshot 1 "):
        RootManifest(path).check(table.metadata, 1)
    renamed = LAYOUT.specs[0].fields[0].model_copy(update={"name": "another"})
    changed = replace(LAYOUT, specs=(PartitionSpec(renamed, spec_id=0),)).union
    with pytest.raises(BadInputError, match="partition fields of the table have changed"):
        read_root(path, changed)
    assert len(plan_scan(table, options=options).files) == 1


def test_what_is_no_root_is_named(tmp_path: Path) -> None:
    _, path = rooted(tmp_path, [file(3, 5, "ap")])
    with pytest.raises(UnknownFileError, match=r"nowhere\.parquet"):
        RootManifest(str(tmp_path / "nowhere.parquet"))
    (tmp_path / "text").write_text("no Parquet at all")
    with pytest.raises(CorruptMetadataError, match="not a Parquet file"):
        RootManifest(str(tmp_path / "text"))
    whole = pq.read_table(path)
    header = json.loads(whole.schema.metadata[HEADER_KEY])
    pq.write_table(whole.replace_schema_metadata(None), path)
    with pytest.raises(CorruptMetadataError, match="is not a root manifest"):
        RootManifest(path)
    later = json.dumps(header | {"version": 2}).encode()
    pq.write_table(whole.replace_schema_metadata({HEADER_KEY: later}), path)
    with pytest.raises(CorruptMetadataError, match="version 2"):
        RootManifest(path)
    twice = pa.concat_tables([whole, whole]).replace_schema_metadata({HEADER_KEY: json.dumps(header).encode()})
    pq.write_table(twice, path, row_group_size=1)
    with pytest.raises(CorruptMetadataError, match="2 row groups, but lists 1"):
        RootManifest(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, path = rooted(tmp_path, [file(3, 5, "ap")])
    before, names = Path(path).read_bytes(), sorted(p.name for p in tmp_path.iterdir())

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", broken)
    with pytest.raises(OSError, match="disk full"):
        write_root(table, path, table.current_snapshot())
    assert (Path(path).read_bytes(), sorted(p.name for p in tmp_path.iterdir())) == (before, names)


def test_requested_rows_are_the_row_groups_read(tmp_path: Path) -> None:
    _, path = rooted(tmp_path, grid(), row_group_entries=4)
    root = RootManifest(path)
    columns = EntryColumns(
        frozenset({"snapshot_id"}), stats=frozenset({2, 55}), sizes=frozenset({1}), nan_counts=frozenset({3})
    )
    some = root.read_entries(root.manifests, LAYOUT.union, columns, rows=np.array([3, 0]))
    assert some.ints("manifest").tolist() == [3] * 4 + [0] * 4
    assert some.ints("ordinal").tolist() == [0, 1, 2, 3] * 2
    assert some.array("lower.55").null_count == some.array("column_size.1").null_count == 8
    none = root.read_entries(root.manifests, LAYOUT.union, columns, rows=np.array([], dtype=np.int64))
    assert {f.name: f.type for f in none.table.schema} == {f.name: f.type for f in some.table.schema}
    assert len(read_entries(ManifestListTable.empty(), LAYOUT.union)) == len(none) == 0


def test_the_command_writes_the_file_and_summarizes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rooted(tmp_path, [*grid(), {"spec_id": 3, "content": 2, "equality_ids": [1], f"partition.{MONTH}": 1}])
    table, target = str(tmp_path / "table" / "v1.metadata.json"), str(tmp_path / "out" / "r.parquet")
    assert main(["entries", table, "-o", target, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "file": target,
        "snapshot_id": SNAPSHOT_ID,
        "entries": 86,
        "data_files": 85,
        "delete_files": 1,
        "specs": [0, 3],
        "partition_fields": ["ts_day", "id_bucket", "prefix", "ts_month"],
        "row_groups": 3,
        "bytes": Path(target).stat().st_size,
    }
    assert main(["entries", table, "-o", target, "--snapshot-id", str(SNAPSHOT_ID)]) == 0
    out = capsys.readouterr().out
    assert "85 data files, 1 delete file" in out
    assert "ts_day, id_bucket, prefix, ts_month" in out
    assert main(["entries", table, "-o", target, "--snapshot-id", "1"]) == 2
    assert "no snapshot 1" in capsys.readouterr().err
    assert main(["entries", table, "-o", target, "--ref", "missing"]) == 2
