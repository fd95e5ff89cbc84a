"""The third pass: row groups pruned by footer and manifest statistics; unreadable files are kept with a warning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from floeplan.parquet.footer.footer import FOOTER_CACHE_FILES, cached_footer, read_footer
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.source import open_source
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "v", DoubleType(), required=False), schema_id=0
)
PLAIN = PartitionSpec(spec_id=0)
ROWS = [{"id": n, "v": float(n)} for n in range(8)]
NO_NAN = {"value_counts": {2: 8}, "null_value_counts": {2: 0}, "nan_value_counts": {2: 0}}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def plan(files: Files, where: str, *specs: PartitionSpec, **options: Any) -> ScanPlan:
    return plan_scan(files.table(Layout(SCHEMA, specs or (PLAIN,))), where, options=ScanOptions(**options))


def kept(planned: ScanPlan) -> list[tuple[int, ...] | None]:
    return [file.row_groups for file in planned.files]


def test_nan_may_be_anywhere_unless_the_manifest_knows_better(files: Files) -> None:
    files.data(ROWS, SCHEMA, group=2)
    files.data(ROWS, SCHEMA, group=2, **NO_NAN)
    assert kept(plan(files, "v > 5.5")) == [(0, 1, 2, 3), (3,)]
    assert plan(files, "v > 5.5").count() == 4


def test_nan_that_is_there_is_found(files: Files) -> None:
    rows = [*ROWS[:4], {"id": 4, "v": math.nan}, *ROWS[5:]]
    files.data(rows, SCHEMA, group=2, **(NO_NAN | {"nan_value_counts": {2: 1}}))
    for page_index in (False, True):
        found = plan(files, "v > 6.5", page_index=page_index).to_arrow(["id"]).column("id").to_pylist()
        assert found == [4, 7]


def test_pages_know_of_nan_what_their_row_group_knows(files: Files) -> None:
    files.data(ROWS, SCHEMA, group=8, **NO_NAN)
    planned = plan(files, "v > 50.0", page_index=True)
    assert len(planned.files) == 0


def test_row_groups_proven_by_footer_and_manifest_need_no_evaluation(files: Files) -> None:
    files.data(ROWS, SCHEMA, group=2, **NO_NAN)
    (file,) = plan(files, "v < 3.5").files
    assert (file.row_groups, str(file.residual)) == ((0, 1), "true")


def test_column_that_only_the_partition_knows_is_not_null(files: Files) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"), spec_id=0)
    files.data([{"id": 1}, {"id": 2}], Schema(SCHEMA.fields[0]), group=1, **{"partition.1000": 1.5})
    assert plan(files, "v = 1.5 AND id = 2", spec).count() == 1
    assert kept(plan(files, "v = 1.5 AND id = 2", spec)) == [(1,)]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"file_format": "LANCE"}, "it is LANCE, neither"),
        ({"file_path": "gone.parquet"}, "gone.parquet"),
    ],
)
def test_file_that_cannot_be_opened_stays_whole_with_a_warning(files: Files, entry: dict[str, Any], why: str) -> None:
    files.data(ROWS, SCHEMA, **entry)
    planned = plan(files, "id = 3")
    assert kept(planned) == [None]
    (warning,) = planned.warnings
    assert warning.kind == "footer-not-used"
    assert why in warning.message


def test_damaged_footer_stays_whole_with_a_warning(files: Files) -> None:
    path = Path(files.data(ROWS, SCHEMA))
    path.write_bytes(path.read_bytes()[:-8] + b"\xff\xff\xff\x7fPAR1")
    planned = plan(files, "id = 3")
    assert kept(planned) == [None]
    assert [warning.context["file"] for warning in planned.warnings] == [str(path)]


def test_cache_forgets_the_least_recently_used(files: Files) -> None:
    paths = [files.data(ROWS, SCHEMA) for _ in range(3)]
    cached_footer.cache.clear()

    def get(number: int) -> tuple[object, int]:
        source = open_source(paths[number], PyArrowFileIO())
        return cached_footer(paths[number], 1, source), source.counters.requests

    first, _ = get(0)
    footer = read_footer(open_source(paths[0], PyArrowFileIO()))
    get(1)
    # Fill the cache: the next file evicts the least recently used one.
    cached_footer.cache.update(((str(number), 1), footer) for number in range(FOOTER_CACHE_FILES - 2))
    assert get(0) == (first, 0)
    get(2)
    assert get(0)[1] == 0
    assert get(1)[1] > 0


@pytest.mark.parametrize(
    "where", ["id = 13", "v IS NULL AND id > 20", "NOT (id < 30)", "id <=> NULL", "v BETWEEN 3 AND 9 OR id = 2"]
)
def test_files_are_evaluated_together_as_each_alone(files: Files, where: str) -> None:
    other = Schema(NestedField(1, "id", LongType(), required=False), schema_id=0)
    paths = [files.data([{"id": None, "v": None}] * 4, SCHEMA, group=4)]
    for first in range(0, 40, 8):
        paths.append(files.data([{"id": n, "v": float(n)} for n in range(first, first + 8)], SCHEMA, group=2))
        paths.append(files.data([{"id": n} for n in range(first, first + 8)], other, group=4))
    alone = Pruner(where, SCHEMA, PruneOptions(page_index=False, bloom_filter=False))
    expected = {path: groups for path in paths if (groups := alone.prune(path).row_groups)}
    assert {file.path: file.row_groups for file in plan(files, where).files} == expected


@pytest.mark.parametrize(
    "where",
    [
        "name = 'b'",
        "name <> 'b'",
        "NOT (name = 'b')",
        "name IS NULL",
        "name IN ('a', 'c') OR name IS NULL",
        "name >= 'b' AND name < 'd'",
        "name LIKE 'c%'",
        "name <=> NULL",
        "length(name) = 2",
        "name = 'b' AND id > 20",
    ],
)
def test_counts_by_dictionaries_are_those_of_the_rows(files: Files, where: str) -> None:
    """With nulls, a renamed column, deletes, an identity partition that contradicts the file, and a file without it."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=False), NestedField(2, "name", StringType(), required=False)
    )
    renamed = Schema(schema.fields[0], NestedField(2, "label", StringType(), required=False))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"), spec_id=1)
    names = [None, "a", "b", "c", "cc", "d", "é"]
    rows = [{"id": n, "name": names[n * n % 7]} for n in range(60)]
    files.data(rows, schema, group=25)
    files.data([{"id": row["id"], "label": row["name"]} for row in rows], renamed)
    deleted = files.data(rows, schema)
    files.positions([(deleted, 5), (deleted, 9)])
    files.data(rows, schema, spec_id=1, partition={"name": "b"})
    files.data([{"id": 3}], Schema(schema.fields[0]))
    table = files.table(Layout(schema, (PLAIN, spec)))
    planned = plan_scan(table, where)
    assert planned.count() == planned.to_arrow().num_rows
