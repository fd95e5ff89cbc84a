"""Joining small files: suitable pages are copied byte for byte, other columns are encoded again."""

from __future__ import annotations

import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.types import LongType

import floeplan as fp
from floeplan.errors import FloeplanError
from floeplan.metadata.files import local_path
from floeplan.prune import PruneRequest
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.run.group import GroupResult
from floeplan.rewrite.run.rewrite_group import GroupRewriter, group_tasks
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.parquet.facts import columns_encoded, facts_of
from tests.support.tables.commits import equality_delete
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

ROWS, PAGE = 3000, 600
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("few", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("d", pa.float64()),
        pa.field("f", pa.float32()),
        pa.field("small", pa.decimal128(9, 2)),
        pa.field("price", pa.decimal128(18, 4)),
        pa.field("wide", pa.decimal128(38, 6)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("instant", pa.timestamp("us", "UTC")),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("key", pa.uuid()),
        pa.field("point", pa.struct([("x", pa.int64())])),
        pa.field("tags", pa.list_(pa.int64())),
    ]
)
KEPT = {"id", "n", "d", "f", "small", "price", "wide", "day", "at", "instant", "text", "bytes"}
STATISTICS = ("record_count", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
LEVEL = "write.parquet.compression-level"
PROPERTIES = {"write.parquet.page-row-limit": str(PAGE), "format-version": "2"}


def rows(first: int, count: int = ROWS) -> pa.Table:
    """Rows with mostly distinct values; every third page is null except for ``id``."""
    rng = np.random.default_rng(first)
    ids = np.arange(first, first + count)
    nulls = (ids // PAGE % 3 == 1) | (ids % 7 == 0)
    big, numbers = rng.integers(-(2**62), 2**62, count), rng.permutation(count) + first
    some: dict[str, Any] = {
        "n": numbers.tolist(),
        "d": rng.normal(size=count).tolist(),
        "f": rng.normal(size=count).astype(np.float32).tolist(),
        "small": [Decimal(int(v)).scaleb(-2) for v in numbers],
        "price": [Decimal(int(v) % 10**17).scaleb(-4) for v in big],
        "wide": [Decimal(int(v)).scaleb(-6) for v in big],
        "day": numbers.astype("datetime64[D]").tolist(),
        "at": big % 2**50,
        "instant": big % 2**50,
        "text": [f"é{v:x}" * (1 + v % 9) for v in big],
        "bytes": [int(v).to_bytes(8, "little", signed=True) * (1 + v % 9) for v in big],
        "key": [uuid.UUID(int=int(v) % 2**63).bytes for v in big],
        "point": [{"x": int(v)} for v in big],
        "tags": [[int(v)] * (int(v) % 3) for v in big],
    }
    columns = {name: pa.array(values, mask=nulls).cast(SCHEMA.field(name).type) for name, values in some.items()}
    return pa.table({"id": ids, "few": [f"k{i % 5}" for i in ids], **columns}, schema=SCHEMA)


def table_of(folder: Path, *parts: pa.Table, **properties: str) -> Table:
    table = catalog(folder).create_table("db.t", SCHEMA, properties=PROPERTIES | properties)
    for part in parts:
        append(table, part)
    return table


def append(table: Table, part: pa.Table) -> None:
    """Rows with a higher compression level than the default, so that re-encoded pages differ."""
    with writable_metadata(table.io), table.transaction() as change:
        change.set_properties({LEVEL: "12"})
    fp.append(table, part)
    with writable_metadata(table.io), table.refresh().transaction() as change:
        change.remove_properties(LEVEL)


def rewritten(table: Table) -> GroupResult:
    options = RewriteOptions(rewrite_all=True)
    plan = RewriteDataFilesPlanner(table, options, cache=False).plan()
    (task,) = group_tasks(plan)
    return GroupRewriter.of(plan)(task, "attempt")


def only_file(result: GroupResult) -> Path:
    (path,) = result.added.path.to_pylist()
    return Path(local_path(path))


def kept(result: GroupResult) -> set[str]:
    """Columns whose bytes are the concatenated bytes of the old files."""
    old = [facts_of(Path(local_path(path))) for path in result.removed_data]
    new = facts_of(only_file(result))
    return {
        fact["column"][0]
        for fact in new
        if b"".join(f["bytes"] for part in old for f in part if f["column"] == fact["column"])
        == b"".join(f["bytes"] for f in new if f["column"] == fact["column"])
    }


def test_good_pages_stay_and_row_groups_are_one(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(0), rows(ROWS), rows(2 * ROWS))
    result = rewritten(table)
    assert kept(result) == KEPT
    assert pq.read_metadata(only_file(result)).num_row_groups == 1
    assert pq.read_table(only_file(result)).equals(
        pa.concat_tables([pq.read_table(local_path(path)) for path in result.removed_data])
    )


def test_pages_keep_their_rows_and_bounds(tmp_path: Path) -> None:
    result = rewritten(table_of(tmp_path, rows(0), rows(ROWS)))
    old = [fact for path in result.removed_data for fact in facts_of(Path(local_path(path)))]
    for fact in facts_of(only_file(result)):
        parts = [part for part in old if part["column"] == fact["column"]]
        assert fact["located"], fact["column"]
        assert fact["described"] == parts[0]["described"], fact["column"]
        if fact["column"][0] in KEPT:
            assert fact["pages"] == [page for part in parts for page in part["pages"]]
            assert fact["bounds"] == [bound for part in parts for bound in part["bounds"]]
            assert fact["rows"][1] == [count for part in parts for count in part["rows"][1]]


def test_statistics_equal_those_of_encoded_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(0), rows(ROWS))
    joined = rewritten(table)
    with table.transaction() as change:
        change.set_properties({LEVEL: "1"})
    written = rewritten(table)
    assert not kept(written), "a configured level is not that of old pages"
    for name in STATISTICS:
        assert joined.added.array(name).to_pylist() == written.added.array(name).to_pylist(), name
    ours, theirs = (pq.read_metadata(only_file(result)).row_group(0) for result in (joined, written))
    for column in range(ours.num_columns):
        mine, other = ours.column(column), theirs.column(column)
        assert mine.path_in_schema == other.path_in_schema
        if mine.statistics is not None and mine.statistics.has_min_max:
            assert (mine.statistics.min, mine.statistics.max) == (other.statistics.min, other.statistics.max)
            assert mine.statistics.null_count == other.statistics.null_count


def test_every_row_is_found_through_page_index_and_map(tmp_path: Path) -> None:
    result = rewritten(table_of(tmp_path, rows(0), rows(ROWS)))
    path = str(only_file(result))
    found = PruneRequest(path).with_predicate(f"id = {ROWS + PAGE + 1}").enable_page_index().prune()
    assert found.to_dict()["row_selection"] == [[ROWS + PAGE, PAGE]]
    ids = pq.read_table(path)["id"]
    for source in result.removed_data:
        old = pq.read_table(local_path(source))["id"].to_pylist()
        (places,) = result.position_map.remap(source, np.arange(len(old))).values()
        assert ids.take(pa.array(places)).to_pylist() == old


def test_a_column_without_full_statistics_is_encoded_again(tmp_path: Path) -> None:
    odd = rows(ROWS).set_column(3, SCHEMA.field("d"), pa.array([float("nan"), 1.0] * (ROWS // 2)))
    long = ["x" * 5000 + str(i) for i in range(ROWS)]
    odd = odd.set_column(11, SCHEMA.field("text"), pa.array(long))
    result = rewritten(table_of(tmp_path, rows(0), odd))
    assert kept(result) == KEPT - {"d", "text"}
    (counts,) = result.added.array("nan_value_counts").to_pylist()
    assert {"key": 4, "value": ROWS // 2} in counts
    assert pq.read_table(only_file(result))["text"].to_pylist()[ROWS:] == long


def test_added_or_promoted_columns_are_encoded_again(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(0))
    with table.update_schema() as update:
        update.update_column("n", LongType())
        update.add_column("late", LongType())
    append(table, rows(ROWS).append_column("late", pa.array(range(ROWS))))
    before = fp.plan_scan(table).to_arrow().sort_by("id")
    result = rewritten(table)
    assert kept(result) == KEPT - {"n"}
    assert pq.read_table(only_file(result))["late"].to_pylist() == before["late"].to_pylist()
    assert pq.read_table(only_file(result))["n"].to_pylist() == before["n"].to_pylist()


def test_pages_of_another_codec_or_small_pages_are_encoded_again(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(0), rows(ROWS))
    for change in ({"write.parquet.compression-codec": "gzip"}, {"write.parquet.page-row-limit": str(5 * PAGE)}):
        with table.transaction() as transaction:
            transaction.set_properties({"write.parquet.compression-codec": "zstd", **change})
        assert not kept(rewritten(table))


@pytest.mark.parametrize("compiled", [True, False])
def test_pages_are_made_without_deleted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr("floeplan.rewrite.pages.filtered_pages.kernel", None)
    table = table_of(tmp_path, rows(0), rows(ROWS), rows(2 * ROWS), **{"write.delete.mode": "merge-on-read"})
    fp.delete(table, where=f"n % 10 = 3 OR (id >= {PAGE} AND id < {2 * PAGE})")
    before = fp.plan_scan(table.refresh()).to_arrow().sort_by("id")
    encoded = columns_encoded(monkeypatch)
    result = rewritten(table)
    assert encoded == ({"point", "tags"} if compiled else set()), "without the kernel all rows are encoded again"
    made = pq.read_table(only_file(result)).sort_by("id")
    assert made.to_pylist() == before.to_pylist()
    for source in result.removed_data:
        old = pq.read_table(local_path(source))["id"].to_pylist()
        places = result.position_map.remap(source, np.arange(len(old))).values()
        ids = pq.read_table(only_file(result))["id"].take(pa.array(np.concatenate(list(places)))).to_pylist()
        assert ids == [i for i in old if i in set(before["id"].to_pylist())]


def test_files_without_deletes_keep_their_pages_beside_others(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(0), rows(ROWS), **{"write.delete.mode": "merge-on-read"})
    fp.delete(table, where="id = 7")
    result = rewritten(table.refresh())
    old = [fact for path in result.removed_data for fact in facts_of(Path(local_path(path)))]
    pages = {page for fact in old for page in fact["pages"]}
    kept_pages = {fact["column"][0] for fact in facts_of(only_file(result)) if pages & set(fact["pages"])}
    assert kept_pages >= KEPT
    assert pq.read_table(only_file(result)).num_rows == 2 * ROWS - 1


def test_one_row_that_is_left_is_found(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(0), rows(ROWS), **{"write.delete.mode": "merge-on-read"})
    for low in (0, ROWS):
        fp.delete(table.refresh(), where=f"id >= {low} AND id < {low + ROWS} AND id % 2 = 0")
    fp.delete(table.refresh(), where="id % 2 = 1 AND id <> 1")
    result = rewritten(table.refresh())
    assert pq.read_table(only_file(result))["id"].to_pylist() == [1]


def test_pages_are_made_without_rows_deleted_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path, rows(0), rows(ROWS))
    gone = set(range(5, 2 * ROWS, 13))
    table = commit_change(table, equality_delete(table, sorted(gone), 0)).table
    encoded = columns_encoded(monkeypatch)
    result = rewritten(table)
    assert encoded == {"point", "tags"}
    assert set(pq.read_table(only_file(result))["id"].to_pylist()) == set(range(2 * ROWS)) - gone


def test_files_without_live_rows_produce_no_file(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(0), rows(ROWS))
    table = commit_change(table, equality_delete(table, list(range(2 * ROWS)), 0)).table
    result = rewritten(table)
    assert (len(result.added), len(result.removed_data)) == (0, 2)


@pytest.mark.parametrize("both", [True, False])
def test_columns_without_definition_levels_stay_so_only_if_all_are(tmp_path: Path, both: bool) -> None:
    """Writers omit definition levels if a column of the file has no nulls, whatever the table schema says."""
    table = table_of(tmp_path)
    levels = [False, not both]
    for number, nullable in enumerate(levels):
        path = tmp_path / f"{number}.parquet"
        schema = pa.schema([field.with_nullable(nullable) if field.name == "id" else field for field in SCHEMA])
        ids = [f.with_metadata({"PARQUET:field_id": str(n)}) for n, f in enumerate(schema, 1)]
        part = rows(number * ROWS).select(["id", "few"]).cast(pa.schema(ids[:2]))
        pq.write_table(
            part, path, use_dictionary=["few"], compression="zstd", write_page_index=True, max_rows_per_page=PAGE
        )
        table.add_files([str(path)])
    result = rewritten(table.refresh())
    assert kept(result) == ({"id"} if both else set())
    assert pq.read_schema(only_file(result)).field("id").nullable is not both
    assert pq.read_table(only_file(result))["id"].to_pylist() == list(range(2 * ROWS))


def test_row_groups_end_at_the_size_the_table_wants(tmp_path: Path) -> None:
    table = table_of(tmp_path, *(rows(n * ROWS) for n in range(4)))
    size = sum(c.total_uncompressed_size for c in _chunks(Path(local_path(fp.plan_scan(table).files[0].path))))
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-size-bytes": str(int(2.5 * size))})
    result = rewritten(table)
    assert kept(result) == KEPT
    metadata = pq.read_metadata(only_file(result))
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [2 * ROWS, 2 * ROWS]
    starts = [metadata.row_group(n).column(0).data_page_offset for n in range(2)]
    assert result.added.array("split_offsets").to_pylist() == [starts]
    for n in range(2):
        places = [metadata.row_group(n).column(c) for c in range(metadata.num_columns)]
        offsets = [c.dictionary_page_offset or c.data_page_offset for c in places]
        assert offsets == sorted(offsets), "readers identify a row group by its first column"


def test_row_groups_end_before_decoded_columns_are_too_large(tmp_path: Path) -> None:
    texts = [f"{i % 5}" * 5000 for i in range(ROWS)]
    parts = [rows(n * ROWS).set_column(1, SCHEMA.field("few"), pa.array(texts)) for n in range(4)]
    table = table_of(tmp_path, *parts)
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-size-bytes": str(20 * 1024**2)})
    result = rewritten(table)
    assert kept(result) == KEPT
    metadata = pq.read_metadata(only_file(result))
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [2 * ROWS, 2 * ROWS]
    assert pq.read_table(only_file(result), columns=["id"])["id"].to_pylist() == list(range(4 * ROWS))


def test_rows_of_format_3_keep_their_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path)
    monkeypatch.setattr("pyiceberg.table.update.SUPPORTED_TABLE_FORMAT_VERSION", 3)
    with writable_metadata(table.io):
        table.catalog.commit_table(table, (), (UpgradeFormatVersionUpdate(format_version=3),))
    for first in (0, ROWS):
        append(table.refresh(), rows(first))
    result = rewritten(table)
    assert kept(result) == KEPT
    file = pq.read_table(only_file(result)).sort_by("id")
    assert file["_row_id"].to_pylist() == file["id"].to_pylist()
    assert file["_last_updated_sequence_number"].to_pylist() == [1] * ROWS + [2] * ROWS


def test_a_group_that_fails_leaves_no_file(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(0), rows(ROWS))
    last = Path(local_path(fp.plan_scan(table).files[1].path))
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2])
    files = set(last.parent.iterdir())
    with pytest.raises(FloeplanError):
        rewritten(table)
    assert set(last.parent.iterdir()) == files


def _chunks(path: Path) -> list[Any]:
    group = pq.read_metadata(path).row_group(0)
    return [group.column(n) for n in range(group.num_columns)]
