"""A partition filter over all specs: each spec has its own projection; undecided partitions are kept and counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pyiceberg import transforms as pt
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    UUIDType,
)

from floeplan.errors import PredicateSyntaxError, TypeMismatchError, UnknownColumnError, UnknownSpecError
from floeplan.partition.fields import source_types
from floeplan.partition.key import PartitionKey
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.plan.filter import FilterStats, MultiSpecPartitionFilter, SpecEvaluator

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "ts", TimestampType(), required=False),
    NestedField(4, "flag", BooleanType(), required=False),
    NestedField(5, "price", DecimalType(9, 2), required=False),
    NestedField(6, "big", DecimalType(30, 2), required=False),
    NestedField(7, "score", DoubleType(), required=False),
    NestedField(8, "day", DateType(), required=False),
    NestedField(9, "key", UUIDType(), required=False),
)


def spec(spec_id: int, *fields: tuple[int, int, Any]) -> PartitionSpec:
    return PartitionSpec(*(PartitionField(s, i, t, f"p{i}") for i, s, t in fields), spec_id=spec_id)


IDENTITY = pt.IdentityTransform()
PLAIN = spec(0)
BY_REGION = spec(1, (1000, 2, IDENTITY))
BY_DAY_AND_BUCKET = spec(2, (1001, 3, pt.DayTransform()), (1002, 1, pt.BucketTransform(8)))
UNKNOWN = spec(3, (1003, 2, pt.UnknownTransform("soundex")))
VOIDED = spec(4, (1000, 2, pt.VoidTransform()))
EVOLVED = (PLAIN, BY_REGION, BY_DAY_AND_BUCKET)
DAY = 19_800


def bind(predicate: Any, *specs: PartitionSpec, **options: Any) -> MultiSpecPartitionFilter:
    return MultiSpecPartitionFilter.bind(
        predicate, SCHEMA, UnionPartitionType.of(specs, source_types(SCHEMA)), **options
    )


def key(spec_id: int, *values: Any) -> PartitionKey:
    return PartitionKey(spec_id, values or None)


@dataclass(frozen=True)
class CountingEvaluator(SpecEvaluator):
    """Records the partitions it evaluates."""

    evaluated: list[PartitionKey] = field(default_factory=list)

    def keep(self, keys: Any) -> Any:
        self.evaluated.extend(keys)
        return SpecEvaluator.keep(self, keys)


def test_partition_key_from_partitioned_spec() -> None:
    union = UnionPartitionType.of(EVOLVED, source_types(SCHEMA))
    assert PartitionKey.from_tuple(union.spec(1), ["eu"]) == PartitionKey(1, ("eu",))
    assert PartitionKey.from_tuple(union.spec(1), ["eu"]).partition == ("eu",)


def test_partition_key_from_unpartitioned_spec() -> None:
    union = UnionPartitionType.of((PLAIN, BY_REGION, VOIDED), source_types(SCHEMA))
    assert PartitionKey.from_tuple(union.spec(0), []).partition is None
    assert PartitionKey.from_tuple(union.spec(4), [None]).partition is None, "only void fields"


def test_partition_key_hash_equality() -> None:
    assert hash(key(1, "eu")) == hash(key(1, "eu"))
    assert key(1, "eu") == key(1, "eu")
    assert len({key(1, "eu"), key(2, "eu"), key(1, "us"), key(1, "eu")}) == 3


def test_partition_key_sort_key_stable() -> None:
    keys = [key(1, "us"), key(0), key(2, None), key(2, 5), key(1, "eu"), key(2, -1)]
    expected = [key(0), key(1, "eu"), key(1, "us"), key(2, None), key(2, -1), key(2, 5)]
    shuffled = [keys[at] for at in (3, 0, 5, 1, 4, 2)]
    assert sorted(keys, key=PartitionKey.sort_key) == sorted(shuffled, key=PartitionKey.sort_key) == expected


def test_multi_spec_single_spec_table() -> None:
    found = bind("region = 'eu'", BY_REGION)
    assert found.matches(key(1, "eu"))
    assert not found.matches(key(1, "us"))
    assert not found.matches(key(1, None))
    assert found.stats == FilterStats()


def test_multi_spec_evolved_table() -> None:
    found = bind("region = 'eu' AND ts >= TIMESTAMP_NTZ '2024-03-18 00:00:00'", *EVOLVED)
    keys = [key(0), key(1, "eu"), key(1, "us"), key(2, DAY - 1, 3), key(2, DAY, 3)]
    assert found.matches_all(keys).tolist() == [True, True, False, False, True]
    assert found.stats == FilterStats()


def test_multi_spec_unevaluable_spec_fail_open() -> None:
    found = bind("region = 'eu'", BY_REGION, UNKNOWN)
    assert found.unevaluable_specs == (3,)
    assert found.matches(key(3, "E000"))
    assert not found.matches(key(1, "us")), "one spec that cannot be evaluated does not affect others"
    assert found.is_fail_open(key(3, "E000"))
    assert not found.is_fail_open(key(1, "us"))


def test_multi_spec_eval_error_fail_open() -> None:
    found = bind("id = 5", spec(1, (1000, 1, IDENTITY)))
    keys = [key(1, 5), key(1, "not a number"), key(1, 6)]
    assert found.matches_all(keys).tolist() == [True, True, False]
    assert list(found.errors) == [key(1, "not a number")]
    assert found.stats == FilterStats(eval_errors=1, fail_open_partitions=1)


def test_multi_spec_memoization() -> None:
    found = bind("region = 'eu'", BY_REGION)
    whole = found.evaluators[1]
    counting = CountingEvaluator(whole.spec, whole.projection, whole.obstacle, whole.decides)
    found.evaluators = {1: counting}
    for _ in range(3):
        assert found.matches_all([key(1, "eu"), key(1, "us"), key(1, "eu")]).tolist() == [True, False, True]
        assert found.matches(key(1, "eu"))
    assert counting.evaluated == [key(1, "eu"), key(1, "us")]


def test_multi_spec_stats_counting() -> None:
    found = bind("region = 'eu' OR id = 5", BY_REGION, UNKNOWN, spec(5, (1000, 2, IDENTITY), (1004, 1, IDENTITY)))
    keys = [key(3, "a"), key(3, "b"), key(3, "a"), key(5, "us", "bad"), key(5, "us", 6), key(5, "us", "worse")]
    assert found.matches_all(keys).tolist() == [True, True, True, True, False, True]
    found.matches_all(keys)
    assert found.stats == FilterStats(unevaluable_specs=1, eval_errors=2, fail_open_partitions=4)


def test_multi_spec_unknown_spec_hard_error() -> None:
    with pytest.raises(UnknownSpecError, match="no partition spec 9; it has 0, 1, 2"):
        bind("region = 'eu'", *EVOLVED).matches(key(9, "eu"))


@pytest.mark.parametrize(
    ("predicate", "error"),
    [("regoin = 'eu'", UnknownColumnError), ("id = 'x'", TypeMismatchError), ("region =", PredicateSyntaxError)],
)
def test_an_invalid_predicate_is_a_hard_error(predicate: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        bind(predicate, BY_REGION, UNKNOWN)


def test_names_match_case_insensitively_on_request() -> None:
    assert bind("REGION = 'eu'", BY_REGION, case_sensitive=False).matches(key(1, "eu"))


def test_what_a_lossy_transform_cannot_decide_is_kept() -> None:
    found = bind("id > 7", BY_DAY_AND_BUCKET)
    assert found.matches(key(2, DAY, 3))
    assert found.stats == FilterStats(), "an inclusive projection that admits everything is no failure"
    assert not found.evaluators[2].decides
    assert not found.evaluators[2].obstacle


@pytest.mark.parametrize(
    ("predicate", "decides"),
    [
        ("region = 'eu' AND soundex(region) = 'E000'", True),
        ("region = 'eu' OR id > 3", False),
        ("NOT (region <> 'eu' OR id > 3)", True),
        ("id > 3", False),
        ("TRUE", True),
    ],
)
def test_a_conjunction_is_decided_by_any_part_and_a_disjunction_by_all(predicate: str, decides: bool) -> None:
    assert bind(predicate, BY_REGION).evaluators[1].decides is decides


@pytest.mark.parametrize(
    ("column", "literal", "match", "other"),
    [
        (4, "TRUE", True, False),
        (5, "1.50", Decimal("1.50"), Decimal("-1.50")),
        (6, "1.50", Decimal("1.50"), Decimal("12345678901234567890.25")),
        (7, "CAST('NaN' AS DOUBLE)", math.nan, 1.0),
        (7, "0.0D", -0.0, math.nan),
        (8, "DATE '1970-01-03'", 2, -2),
        (9, "'00000000-0000-0000-0000-000000000001'", bytes(15) + b"\x01", bytes(16)),
    ],
)
def test_values_of_every_kind_are_compared(column: int, literal: str, match: Any, other: Any) -> None:
    name = SCHEMA.find_field(column).name
    found = bind(f"{name} = {literal}", spec(1, (1000, column, IDENTITY)))
    assert found.matches_all([key(1, match), key(1, other), key(1, None)]).tolist() == [True, False, False]
    assert found.stats == FilterStats()


def test_many_partitions_are_evaluated_in_one_call() -> None:
    found = bind("id IN (3, 70000)", spec(1, (1000, 1, IDENTITY)))
    kept = found.matches_all([key(1, number) for number in range(100_000)])
    assert np.flatnonzero(kept).tolist() == [3, 70000]
