"""Strategies: the registry, what each allows, and the documented steps with a toy strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder

import floeplan as fp
from floeplan.errors import InvalidOptionError
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.strategies import registry
from floeplan.rewrite.strategies.base import AD_HOC_ORDER_ID, ByColumns, Strategy
from floeplan.rewrite.strategies.registry import find_strategy, register, strategy_names
from tests.support.tables.two_specs import EVENTS, catalog, events

pytestmark = pytest.mark.unit


@dataclass(frozen=True, slots=True)
class ReverseStrategy(Strategy):
    """Rows in descending order of the first column of the table."""

    def sort_order(self, by: Sequence[str], table: Table, *, case_sensitive: bool = True) -> SortOrder:
        first = table.schema().fields[0].field_id
        descending = SortField(first, direction=SortDirection.DESC, null_order=NullOrder.NULLS_LAST)
        return SortOrder(descending, order_id=AD_HOC_ORDER_ID)


REVERSE = ReverseStrategy("reverse")


@pytest.fixture
def reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_STRATEGIES", dict(registry._STRATEGIES))
    register(REVERSE)


def small_files(folder: Path) -> Table:
    table = catalog(folder).create_table("db.t", EVENTS)
    for first in (2000, 0, 1000):
        fp.append(table, events(first, first + 1000))
    fp.delete(table, "id % 100 = 7", mode="merge-on-read")
    return table


@pytest.mark.parametrize("memory", [None, "60000"], ids=["in memory", "on disk"])
@pytest.mark.usefixtures("reverse")
def test_a_registered_strategy_is_planned_and_run(tmp_path: Path, memory: str | None) -> None:
    table = small_files(tmp_path)
    before = fp.plan_scan(table).to_arrow().sort_by([("id", "descending")])
    planned = RewriteDataFilesPlanner(table, RewriteOptions(strategy="reverse", rewrite_all=True)).plan_with_stats()
    assert planned.to_dict()["strategy"] == "reverse"
    options = {"rewrite-all": "true"} | ({} if memory is None else {"task-memory-bytes": memory})
    result = fp.rewrite_data_files(table, strategy="reverse", options=options)
    assert (result.files_rewritten, result.files_added, result.groups_stitched) == (3, 1, 0)
    assert fp.plan_scan(table).to_arrow().equals(before)


def test_a_strategy_is_known_once_it_is_registered(reverse: None) -> None:
    assert strategy_names()[-1] == "reverse"
    assert find_strategy("reverse") is REVERSE


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidOptionError, match="'reverse'; known strategies are binpack, sort, zorder, hilbert, st"):
        find_strategy("reverse")


def test_only_strategies_that_keep_the_order_of_rows_copy_bytes() -> None:
    strategies = [find_strategy(name) for name in strategy_names()]
    assert {one.name for one in strategies if one.copies_bytes} == {"binpack", "stitch"}
    assert all(one.by is ByColumns.NOT_ALLOWED for one in strategies if one.copies_bytes)
