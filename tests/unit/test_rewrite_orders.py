"""Sort orders: parsed terms, the table's sort order, and invalid terms."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType

from floeplan.errors import InvalidOptionError, TypeMismatchError, UnknownColumnError
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.strategies.base import parse_order
from floeplan.rewrite.strategies.registry import find_strategy
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StructType(NestedField(3, "last", StringType(), required=False)), required=False),
)


def parsed(term: str) -> tuple[int, bool, bool]:
    (field,) = parse_order([term], SCHEMA).fields
    return field.source_id, field.direction is SortDirection.DESC, field.null_order is NullOrder.NULLS_FIRST


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("id", (1, False, True)),
        ("id asc", (1, False, True)),
        ("id DESC", (1, True, False)),
        ("id desc nulls first", (1, True, True)),
        ("id NULLS LAST", (1, False, False)),
        ("name.last asc nulls last", (3, False, False)),
    ],
)
def test_terms_name_a_column_a_direction_and_a_place_for_nulls(term: str, expected: tuple[int, bool, bool]) -> None:
    assert parsed(term) == expected


@pytest.mark.parametrize(
    ("term", "error"),
    [
        ("", InvalidOptionError),
        ("id sideways", InvalidOptionError),
        ("id desc nulls", InvalidOptionError),
        ("nope", UnknownColumnError),
        ("name", TypeMismatchError),
    ],
)
def test_invalid_sort_terms_are_refused(term: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parsed(term)


def sorted_table(folder: Path, *fields: SortField) -> Table:
    return catalog(folder).create_table("db.t", SCHEMA, sort_order=SortOrder(*fields))


def test_a_sort_takes_the_order_of_the_table(tmp_path: Path) -> None:
    table = sorted_table(tmp_path, SortField(1, BucketTransform(4), SortDirection.DESC, NullOrder.NULLS_FIRST))
    sort = find_strategy("sort")
    assert sort.sort_order((), table) == table.sort_order()
    (chosen,) = sort.sort_order(("name.last",), table).fields
    assert chosen.source_id == 3
    assert find_strategy("binpack").sort_order((), table).is_unsorted


def test_a_sort_without_an_order_is_refused_when_it_is_planned(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="no sort order"):
        RewriteDataFilesPlanner(sorted_table(tmp_path), RewriteOptions(strategy="sort"))
