"""Damaged or wrong reports: audit and advice count or ignore them, and never fail."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from floeplan.audit.job import audit
from floeplan.audit.reports import read_workload
from tests.support.fuzz import fuzzing
from tests.support.fuzz.mutation import byte_edits, edited_bytes, edited_tree, tree_edits
from tests.support.scan_reports import foreign_report, leaf, own_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, SHARE = 1500, 0.1
"""The share of a test's time for generating lines; the rest is for reading them."""
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()))
DEEP = '{"report-type": "scan-report", "table-name": "db.events", "filter": ' + '{"a":' * 50_000


def hostile_lines() -> list[bytes]:
    """Reports of every kind: intact, damaged as trees, and damaged as bytes."""
    kinds = [
        own_report(leaf("eq", "id", 7), kept=90, total=100, why="values are spread over all files"),
        own_report(leaf("in", "region", ["eu", "us"]), kept=2, total=100, partition_field="region"),
        foreign_report(leaf("gt", "id", 3), kept=3, skipped=4),
    ]
    lines = [line if isinstance(line, str) else json.dumps(line) for line in kinds]
    made = [line.encode() for line in lines] + [
        DEEP.encode(),
        b"{",
        b"\xff\xfe",
        b'{"filter": 1, "table-name": "db.events"}',
    ]
    for seed in fuzzing.seeds(COUNT, share=SHARE):
        random = Random(seed)
        line = random.choice(lines)
        if random.random() < 0.7:
            tree = json.loads(line)
            made.append(json.dumps(edited_tree(tree, tree_edits(tree, random, typed=False))).encode())
        else:
            made.append(edited_bytes(line.encode(), byte_edits(len(line), random)))
    return [line.replace(b"\n", b" ").replace(b"\r", b" ") for line in made]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reports")
    (folder / "scan.jsonl").write_bytes(b"\n".join(hostile_lines()))
    return str(folder)


@pytest.mark.property
def test_advice_ignores_what_it_cannot_use(reports: str) -> None:
    found = read_workload(reports, "db.events", SCHEMA, since=datetime(2020, 1, 1, tzinfo=UTC))
    assert found.runs > 3
    assert found.unusable > 3


@pytest.mark.spark
def test_the_audit_counts_invalid_lines(reports: str, spark: SparkSession) -> None:
    result = audit(spark, reports)
    lines = len([line for line in Path(reports, "scan.jsonl").read_bytes().split(b"\n") if line.strip()])
    assert 3 < result.queries < lines
    json.dumps(result.to_dict(), allow_nan=False)
