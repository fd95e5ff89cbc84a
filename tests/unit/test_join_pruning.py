"""A large table is planned by the keys of small ones that it is joined with."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.predicate.ir import IrExpr
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.spark.join_keys import JoinKey, KeyColumn
from floeplan.sql_text import join_pruning
from floeplan.sql_text.join_pruning import can_prune, plan_by_keys
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

FACTS, DAYS, QUARTERS = 0, 1, 2
PLAIN = fp.ScanOptions(footers=False, report=False, cache=False)
OF_DAY = JoinKey(KeyColumn(FACTS, 1), KeyColumn(DAYS, 0))
OF_QUARTER = JoinKey(KeyColumn(DAYS, 1), KeyColumn(QUARTERS, 0))
OF_ID = JoinKey(KeyColumn(FACTS, 0), KeyColumn(QUARTERS, 2))
MONTHS = range(1, 7)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_pruning, "LEAST_BYTES", 0)
    monkeypatch.setattr(join_pruning, "LARGER", 0.001)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    """Facts in a file per month, days of quarters with a null day, and quarters."""
    found = catalog(tmp_path_factory.mktemp("joins"))
    facts = found.create_table("db.facts", pa.schema([("id", pa.int64()), ("d", pa.date32()), ("v", pa.int32())]))
    for month in MONTHS:
        days = [date(2024, month, day) for day in range(1, 29)]
        ids = [month * 1000 + day.day for day in days]
        fp.append(facts, pa.table({"id": ids, "d": days, "v": pa.array(range(28), pa.int32())}))
    days = [date(2024, month, day) for month in MONTHS for day in range(1, 29)]
    of_days = {"d": [*days, None], "q": pa.array([*((day.month + 2) // 3 for day in days), 1], pa.int32())}
    rows = [
        pa.table(of_days),
        pa.table({"q": pa.array([1, 2], pa.int32()), "label": ["first", "second"], "ends": [3028, 6028]}),
    ]
    for name, data in zip(("days", "quarters"), rows, strict=True):
        fp.append(found.create_table(f"db.{name}", data.schema), data)
    return [found.load_table(f"db.{name}") for name in ("facts", "days", "quarters")]


def planned(tables: list[Table], wheres: list[str | None], keys: list[JoinKey]) -> list[ScanPlan]:
    plans: list[ScanPlan | None] = [plan_scan(t, w, options=PLAIN) for t, w in zip(tables, wheres, strict=True)]

    def replan(at: int, predicate: IrExpr, columns: tuple[str, ...] | None) -> ScanPlan:
        return plan_scan(tables[at], predicate, columns=columns, options=PLAIN)

    found = plan_by_keys(plans, [table.schema() for table in tables], keys, replan)
    return [plan for plan in found if plan is not None]


@pytest.mark.parametrize(
    ("wheres", "keys", "files"),
    [
        (["d IS NOT NULL", "d = DATE '2024-05-03'", None], [OF_DAY], 1),
        ([None, "d = DATE '2024-05-03'", None], [OF_DAY], 6),
        (["d IS NOT NULL", "d IN (DATE '2024-05-03', DATE '2024-01-01')", None], [OF_DAY], 2),
        (["d IS NOT NULL", "d IS NOT NULL", "label = 'second'"], [OF_DAY, OF_QUARTER], 3),
        (["d IS NOT NULL", "q = 7", None], [OF_DAY], 0),
        (["d IS NOT NULL", "d IS NULL", None], [OF_DAY], 0),
        (["id IS NOT NULL", None, "label = 'second'"], [OF_ID], 1),
        (["d IS NOT NULL", "d IS NOT NULL", None], [OF_DAY], 6),
        (["d IS NOT NULL", "q > 0", None], [OF_DAY], 6),
        (["d IS NOT NULL", "d = DATE '2024-05-03'", None], [], 6),
        (["d IS NOT NULL", "d = DATE '2024-05-03'", None], [JoinKey(KeyColumn(FACTS, 2), KeyColumn(DAYS, 0))], 6),
    ],
    ids=[
        "day",
        "no bounds",
        "days",
        "chain",
        "empty",
        "null",
        "id",
        "no condition",
        "all keys",
        "no join",
        "other type",
    ],
)
def test_files_with_none_of_the_keys_are_not_read(
    tables: list[Table], wheres: list[str | None], keys: list[JoinKey], files: int
) -> None:
    facts, *_ = planned(tables, wheres, keys)
    assert len(facts.files) == files


def test_rows_of_a_small_table_without_one_of_the_keys_are_not_read(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has one file, and is joined with a large table."""
    monkeypatch.setattr(join_pruning, "LEAST_BYTES", 3_000)
    facts, days, _ = planned(tables, [None, "d IS NOT NULL", "label = 'second'"], [OF_DAY, OF_QUARTER])
    assert days.summary.bytes_kept < 3_000 <= facts.summary.bytes_kept
    assert {day.month for day in days.to_arrow()["d"].to_pylist()} == {4, 5, 6}


def test_small_tables_are_planned_as_without_joins(tables: list[Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_pruning, "LEAST_BYTES", 2**20)
    facts, *_ = planned(tables, [None, "d = DATE '2024-05-03'", None], [OF_DAY])
    assert len(facts.files) == len(MONTHS)
    assert not can_prune([facts])


def test_keys_of_large_tables_are_not_read(tables: list[Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_pruning, "MOST_ROWS", 10)
    facts, *_ = planned(tables, ["d IS NOT NULL", "q = 2", None], [OF_DAY])
    assert len(facts.files) == len(MONTHS)


def test_many_keys_are_a_range(tables: list[Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_pruning, "MOST_LISTED", 3)
    facts, *_ = planned(tables, ["d IS NOT NULL", "q = 2", None], [OF_DAY])
    assert len(facts.files) == 3
    assert "d BETWEEN DATE '2024-04-01' AND DATE '2024-06-28'" in str(facts.compiled.predicate)
