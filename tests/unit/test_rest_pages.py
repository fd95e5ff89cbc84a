"""Planned files as JSON: partition values of every type, bounds, keys that are left out, pages by size."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform

from floeplan.errors import UnsupportedError
from floeplan.metadata.delete_index import DeleteMatches
from floeplan.metadata.manifests.entries import EntriesTable, new_entries, no_entries, partition_column
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import TRUE
from floeplan.rest import pages
from floeplan.rest.pages import PlanFiles
from floeplan.scan.model import PlannedFiles
from floeplan.scan.projection import PartitionNames

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True, params=[0, pages.FEW_FILES], ids=["by-column", "by-file"])
def few_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page is written in both ways."""
    monkeypatch.setattr(pages, "FEW_FILES", request.param)


def plan_files(
    type_: t.PrimitiveType,
    transform: str,
    values: list[Any],
    *,
    residuals: tuple[str, ...] = ("true",),
    known: frozenset[int] = frozenset({1}),
    **columns: pa.Array,
) -> PlanFiles:
    """A file for each partition value of a spec with one field."""
    schema = Schema(t.NestedField(1, "c", type_))
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p"), spec_id=7)
    union = UnionPartitionType.of([spec], source_types(schema))
    rows = len(values)
    made = {
        "spec_id": pa.array([7] * rows),
        "status": pa.array([1] * rows),
        "content": pa.array([0] * rows),
        "file_path": pa.array([f"s3://b/{n}.parquet" for n in range(rows)]),
        "file_format": pa.array(["PARQUET"] * rows),
        "record_count": pa.array([10] * rows),
        "file_size_in_bytes": pa.array([100] * rows),
        "sequence_number": pa.array([1] * rows),
        **({partition_column(1000): pa.array(values)} if transform != "void" else {}),
        **columns,
    }
    entries = new_entries(made, union)
    files = PlannedFiles(
        entries=entries,
        states=np.ones(rows, dtype=np.int8),
        residuals=(TRUE,) * len(residuals),
        residual_of=np.arange(rows) % len(residuals),
        deletes=no_entries(union),
        delete_kinds=np.zeros(0, dtype=np.int8),
        matches=DeleteMatches.none(rows),
        row_groups={},
        names=PartitionNames(union, entries.partition_types),
    )
    return PlanFiles(files, EntriesTable(entries.table, {}), residuals, (), union, known)


def tasks(files: PlanFiles, start: int = 0, end: int | None = None, **options: Any) -> list[dict[str, Any]]:
    content, deletes = files.page(start, len(files) if end is None else end, **{"pyiceberg": False} | options)
    assert deletes == b"[]"
    found: list[dict[str, Any]] = json.loads(content)
    return found


@pytest.mark.parametrize(
    ("type_", "transform", "stored", "expected"),
    [
        (t.BooleanType(), "identity", 1, "true"),
        (t.IntegerType(), "identity", -5, "-5"),
        (t.LongType(), "truncate[10]", 2**62, str(2**62)),
        (t.FloatType(), "identity", 5.0, "5.0"),
        (t.DoubleType(), "identity", 1e100, "1e+100"),
        (t.DecimalType(9, 2), "identity", 1250, '"12.50"'),
        (t.DecimalType(30, 10), "identity", Decimal("0.0000000001"), '"1E-10"'),
        (t.DateType(), "identity", 19740, '"2024-01-18"'),
        (t.DateType(), "day", -1, '"1969-12-31"'),
        (t.TimestamptzType(), "day", 19740, '"2024-01-18"'),
        (t.TimestamptzType(), "hour", 473_761, "473761"),
        (t.DateType(), "month", 648, "648"),
        (t.DateType(), "year", 54, "54"),
        (t.TimeType(), "identity", 3_723_000_000, '"01:02:03"'),
        (t.TimestampType(), "identity", 1_705_539_723_000_001, '"2024-01-18T01:02:03.000001"'),
        (t.TimestamptzType(), "identity", 0, '"1970-01-01T00:00:00.000000+00:00"'),
        (t.TimestampNanoType(), "identity", -1, '"1969-12-31T23:59:59.999999999"'),
        (t.StringType(), "identity", 'a "b" \\ ü\n', '"a \\"b\\" \\\\ ü\\n"'),
        (t.StringType(), "identity", "null", '"null"'),
        (t.StringType(), "truncate[2]", "ab", '"ab"'),
        (t.StringType(), "bucket[4]", 3, "3"),
        (t.UUIDType(), "identity", bytes(15) + b"\x0a", '"00000000-0000-0000-0000-00000000000a"'),
        (t.FixedType(2), "identity", b"\xab\x01", '"AB01"'),
        (t.BinaryType(), "identity", b"", '""'),
    ],
    ids=str,
)
def test_partition_values(type_: t.PrimitiveType, transform: str, stored: Any, expected: str) -> None:
    files = plan_files(type_, transform, [stored, None])
    content, _ = files.page(0, 2, pyiceberg=False)
    assert f'"partition":[{expected}]'.encode() in content
    assert [task["data-file"]["partition"] for task in json.loads(content)] == [[json.loads(expected)], [None]]
    content, _ = files.page(0, 2, pyiceberg=True)
    assert [task["data-file"]["partition"] for task in json.loads(content)] == [[json.loads(expected)], []]


def test_zeros_keep_their_sign() -> None:
    content, _ = plan_files(t.DoubleType(), "identity", [0.0, -0.0, 0.0]).page(0, 3, pyiceberg=False)
    assert [str(task["data-file"]["partition"][0]) for task in json.loads(content)] == ["0.0", "-0.0", "0.0"]


@pytest.mark.parametrize(
    ("type_", "stored"),
    [(t.DoubleType(), float("nan")), (t.FloatType(), float("inf")), (t.DateType(), 2**30), (t.TimestampType(), 2**62)],
)
def test_values_without_json_are_errors_but_for_pyiceberg(type_: t.PrimitiveType, stored: Any) -> None:
    """PyIceberg reads identity columns from data files, other clients from the partition value."""
    files = plan_files(type_, "identity", [stored])
    with pytest.raises(UnsupportedError, match="which a REST client cannot read"):
        files.page(0, 1, pyiceberg=False)
    assert tasks(files, pyiceberg=True)[0]["data-file"]["partition"] == []


def test_void_fields_and_dropped_sources_are_null() -> None:
    assert tasks(plan_files(t.IntegerType(), "void", [None]))[0]["data-file"]["partition"] == [None]
    gone = plan_files(t.IntegerType(), "identity", [5], known=frozenset())
    assert tasks(gone)[0]["data-file"]["partition"] == [None]
    hashed = plan_files(t.IntegerType(), "bucket[4]", [3], known=frozenset())
    assert tasks(hashed)[0]["data-file"]["partition"] == [3]


def test_keys_without_a_value_are_left_out() -> None:
    files = plan_files(
        t.IntegerType(),
        "identity",
        [1, 2],
        sort_order_id=pa.array([None, 3]),
        key_metadata=pa.array([b"\x00\xff", None]),
        split_offsets=pa.array([[4, 1000], None], pa.large_list(pa.int64())),
        first_row_id=pa.array([7, None]),
    )
    first, second = (task["data-file"] for task in tasks(files))
    assert (first["split-offsets"], first["key-metadata"], first["first-row-id"]) == ([4, 1000], "00FF", 7)
    assert first["data-sequence-number"] == 1
    assert second["sort-order-id"] == 3
    assert "sort-order-id" not in first
    assert not {"split-offsets", "key-metadata", "first-row-id"} & second.keys()


def test_split_offsets_of_some_lengths() -> None:
    offsets = [[], [4], [4, 5, 6], [4]]
    files = plan_files(
        t.IntegerType(), "identity", [1, 2, 3, 4], split_offsets=pa.array(offsets, pa.large_list(pa.int64()))
    )
    assert [task["data-file"]["split-offsets"] for task in tasks(files)] == offsets
    assert [task["data-file"]["split-offsets"] for task in tasks(files, 1, 3)] == offsets[1:3]


def test_paths_with_quotes_separators_and_line_breaks() -> None:
    """Paths of few files are encoded in one call and divided at line breaks, which JSON escapes within a string."""
    paths = ['s3://b/"a",\\.parquet', "s3://b/one\nline\r\n.parquet", "s3://b/ü\u2028.parquet"]
    files = plan_files(t.IntegerType(), "identity", [1, 2, 3], file_path=pa.array(paths))
    assert [task["data-file"]["file-path"] for task in tasks(files)] == paths
    assert [task["data-file"]["file-path"] for task in tasks(files, 1, 2)] == paths[1:2]


def test_residuals_by_file() -> None:
    files = plan_files(t.IntegerType(), "identity", [1, 2, 3], residuals=("true", '{"type":"is-null","term":"c"}'))
    assert [task["residual-filter"] for task in tasks(files)] == [True, {"type": "is-null", "term": "c"}, True]


def test_pages_by_bytes() -> None:
    files = plan_files(t.IntegerType(), "identity", list(range(1000)))
    starts = files.page_starts(10_000)
    assert (starts[0], starts[-1]) == (0, 1000)
    pages = [files.page(a, b, pyiceberg=False)[0] for a, b in pairwise(starts)]
    assert [path for page in pages for path in json.loads(page)] == tasks(files)
    assert all(5_000 < len(page) < 15_000 for page in pages[:-1])
    assert files.page_starts(10**9) == [0, 1000]
    assert files.page_starts(1) == list(range(1001))
    short = files.page_starts(10_000, 1_000)
    assert (short[0], short[-1]) == (0, 1000)
    assert 0 < short[1] < starts[1] / 5, "the first of several pages is shorter"
    assert abs((short[2] - short[1]) - starts[1]) <= 1, "and the others are not"
    assert files.page_starts(10**9, 1_000) == [0, 1000], "but a single page is not"
    nothing = plan_files(t.IntegerType(), "identity", [])
    assert nothing.page_starts(10) == [0, 0]
    assert nothing.page(0, 0, pyiceberg=False) == (b"[]", b"[]")


def test_every_client_gets_every_residual() -> None:
    files = plan_files(t.IntegerType(), "identity", [1, 2, 3], residuals=("true", '{"type":"is-null","term":"x"}'))
    for pyiceberg in (False, True):
        written = [task["residual-filter"] for task in tasks(files, pyiceberg=pyiceberg)]
        assert written == [True, {"type": "is-null", "term": "x"}, True]


def test_delete_files_by_reference() -> None:
    files = plan_files(t.IntegerType(), "identity", [1, 2, 3, 4])
    deletes = plan_files(
        t.IntegerType(),
        "identity",
        [2, 3, None],
        content=pa.array([1, 2, 1]),
        file_path=pa.array(["s3://b/a.parquet", 's3://b/"b".parquet', "s3://b/dv.puffin"]),
        file_format=pa.array(["PARQUET", "PARQUET", "PUFFIN"]),
        equality_ids=pa.array([None, [1], None], pa.large_list(pa.int64())),
        referenced_data_file=pa.array([None, None, "s3://b/3.parquet"]),
        content_offset=pa.array([None, None, 4]),
        content_size_in_bytes=pa.array([None, None, 40]),
    )
    matches = DeleteMatches(np.array([0, 0, 1, 3, 4]), np.array([0, 0, 1, 2]))
    planned = replace(files, files=replace(files.files, deletes=deletes.files.entries, matches=matches))
    content, written = planned.page(1, 4, pyiceberg=False)
    references = [task.get("delete-file-references") for task in json.loads(content)]
    assert references == [[0], [0, 1], [2]]
    first, second, third = json.loads(written)
    assert [file["content"] for file in (first, second, third)] == [
        "position-deletes",
        "equality-deletes",
        "position-deletes",
    ]
    assert second["equality-ids"] == [1]
    assert second["file-path"] == 's3://b/"b".parquet'
    assert (third["partition"], third["file-format"]) == ([None], "puffin")
    assert (third["content-offset"], third["content-size-in-bytes"]) == (4, 40)
    assert third["referenced-data-file"] == "s3://b/3.parquet"
    assert not {"equality-ids", "referenced-data-file", "content-offset"} & first.keys()
    content, written = planned.page(0, 1, pyiceberg=False)
    assert ("delete-file-references" in json.loads(content)[0], written) == (False, b"[]")


def test_both_ways_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    files = plan_files(
        t.StringType(),
        "identity",
        ["a", None, 'ü"'],
        sort_order_id=pa.array([None, 3, 0]),
        key_metadata=pa.array([b"\x00\xff", None, b""]),
        split_offsets=pa.array([[4, 1000], None, []], pa.large_list(pa.int64())),
        first_row_id=pa.array([7, None, 0]),
    )
    for pyiceberg in (False, True):
        ways = []
        for few in (0, pages.FEW_FILES):
            monkeypatch.setattr(pages, "FEW_FILES", few)
            ways.append(files.page(0, 3, pyiceberg=pyiceberg))
        assert ways[0] == ways[1]
