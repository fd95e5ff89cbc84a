"""Deletes matched by the union partition tuple, from manifests and from the root, against matching spec by spec."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from floeplan.metadata.root_writer import write_root
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.tables.layouts import Layout

pytestmark = pytest.mark.property

REGION = PartitionField(2, 1000, IdentityTransform(), "region")
BUCKET = PartitionField(1, 1001, BucketTransform(4), "id_bucket")
LAYOUT = Layout(
    Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), NestedField(3, "v", DoubleType())),
    (
        PartitionSpec(spec_id=0),
        PartitionSpec(REGION, spec_id=1),
        PartitionSpec(REGION, BUCKET, spec_id=2),
        PartitionSpec(PartitionField(2, 1000, VoidTransform(), "region"), BUCKET, spec_id=4),
        PartitionSpec(PartitionField(2, 1000, VoidTransform(), "region"), spec_id=5),
        PartitionSpec(BUCKET, PartitionField(3, 1002, IdentityTransform(), "v"), spec_id=6),
        PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "clash"), spec_id=7),
    ),
)
UNPARTITIONED = (0, 5)
VALUES = {2: st.sampled_from(["a", "b", None]), 1: st.sampled_from([0, 1, None]), 3: st.sampled_from([0.5, -0.5, None])}
OPTIONS = ScanOptions(footers=False, cache=False, report=False)


@st.composite
def files(draw: st.DrawFn, number: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """A file, and its partition tuple in the order of its own spec."""
    spec = draw(st.sampled_from(LAYOUT.specs))
    void = [isinstance(field.transform, VoidTransform) for field in spec.fields]
    values = [None if gone else draw(VALUES[f.source_id]) for f, gone in zip(spec.fields, void, strict=True)]
    row: dict[str, Any] = {
        "spec_id": spec.spec_id,
        "file_path": f"f{number}",
        "sequence_number": draw(st.integers(1, 4)),
    }
    for field in LAYOUT.union.fields:
        if spec.spec_id in field.positions:
            row[f"partition.{field.id}"] = values[field.positions[spec.spec_id]]
    row["content"] = draw(st.sampled_from([0, 0, 1, 2]))
    row["equality_ids"] = [1] if row["content"] == 2 else None
    return row, tuple(values)


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
    return [draw(files(number)) for number in range(draw(st.integers(1, 10)))]


def applies(delete: tuple[dict[str, Any], tuple[Any, ...]], data: tuple[dict[str, Any], tuple[Any, ...]]) -> bool:
    """The rule of the specification, on tuples of the files' own specs."""
    (row, values), (file, of_file) = delete, data
    same = row["spec_id"] == file["spec_id"] and values == of_file
    if row["content"] == 2:
        newer = row["sequence_number"] > file["sequence_number"]
        return newer and (same or row["spec_id"] in UNPARTITIONED)
    return same and row["sequence_number"] >= file["sequence_number"]


@settings(max_examples=max(settings.default.max_examples // 2, 1))
@given(tables())
def test_the_union_tuple_matches_what_each_spec_would(found: list[tuple[dict[str, Any], tuple[Any, ...]]]) -> None:
    data = [file for file in found if file[0]["content"] == 0]
    deletes = [file for file in found if file[0]["content"] != 0]
    expected = {file[0]["file_path"]: {d[0]["file_path"] for d in deletes if applies(d, file)} for file in data}
    with tempfile.TemporaryDirectory() as folder:
        table = LAYOUT.write_table(Path(folder) / "table", LAYOUT.entries([row for row, _ in found]))
        path = f"{folder}/root.parquet"
        write_root(table, path, table.current_snapshot(), row_group_entries=3)
        for root in (None, path):
            plan = plan_scan(table, options=replace(OPTIONS, root=root))
            assert {file.path: {delete.path for delete in file.deletes} for file in plan.files} == expected
