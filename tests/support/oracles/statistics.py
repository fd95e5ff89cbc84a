"""Statistics of containers of rows: exact ones, and weakened ones.

Weakened statistics contain everything a writer may legally do: bounds loosened, truncated or left out, counts left out,
NaN as upper bound, zeros with either sign. They also contain faults of broken writers that must be ignored: counts that
exceed the rows, a lower bound above its upper bound.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg.types import BinaryType, DecimalType, FixedType, PrimitiveType, StringType, UUIDType

from floeplan.predicate.evaluate import physical
from floeplan.predicate.ir import Column
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable
from tests.support.oracles.datasets import Dataset
from tests.support.oracles.rows import is_nan, order_key
from tests.support.oracles.values import edges, is_float, neighbours, unscaled_of

UNKNOWN = -1


@dataclass(frozen=True)
class Summary:
    """Statistics of one column in one container."""

    rows: int
    nulls: int
    nans: int
    lower: Any = None
    upper: Any = None

    @classmethod
    def of(cls, values: list[Any]) -> Summary:
        """Exact statistics of these values."""
        ordinary = sorted((v for v in values if v is not None and not is_nan(v)), key=order_key)
        nulls, nans = sum(v is None for v in values), sum(map(is_nan, values))
        return cls(len(values), nulls, nans, *((ordinary[0], ordinary[-1]) if ordinary else ()))


@st.composite
def containers(draw: st.DrawFn, size: int) -> list[range]:
    """Consecutive slices of the rows, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=5)))
    return [range(a, b) for a, b in pairwise([0, *cuts, size])]


def exact_table(data: Dataset, cut: list[range]) -> StatsTable:
    """Exact statistics of every column."""
    summaries = {column: _summaries(data, column, cut) for column in data.columns}
    return _table(cut, {c.field_id: column_stats(c.type, s) for c, s in summaries.items()})


@st.composite
def weakened_tables(draw: st.DrawFn, data: Dataset, cut: list[range]) -> StatsTable:
    """Weakened statistics; some columns have none, some also have a bloom filter."""
    columns = {}
    for column in data.columns:
        if draw(st.integers(0, 7)):
            summaries = [draw(weakened(column.type, s)) for s in _summaries(data, column, cut)]
            columns[column.field_id] = column_stats(column.type, summaries)
    probe = Probe({c.field_id: _patterns(data, c, cut) for c in data.columns if draw(st.booleans())})
    return _table(cut, columns, probe)


def _table(cut: list[range], columns: dict[int, ColumnStats], bloom: Probe | None = None) -> StatsTable:
    return StatsTable(len(cut), columns, np.array([len(rows) > 0 for rows in cut], dtype=np.bool_), bloom)


def _summaries(data: Dataset, column: Column, cut: list[range]) -> list[Summary]:
    rows = data.rows
    return [Summary.of([rows[i][column.field_id] for i in container]) for container in cut]


def weakened(type_: PrimitiveType, exact: Summary) -> st.SearchStrategy[Summary]:
    """The summary after up to three weakenings."""
    liberties: list[Callable[[Summary], Summary]] = [
        lambda s: replace(s, rows=UNKNOWN),
        lambda s: replace(s, nulls=UNKNOWN),
        lambda s: replace(s, nulls=exact.rows + 1),
        lambda s: replace(s, lower=None),
        lambda s: replace(s, upper=None),
        lambda s: replace(s, lower=_looser(type_, s.lower, below=True)),
        lambda s: replace(s, upper=_looser(type_, s.upper, below=False)),
    ]
    if is_float(type_):
        liberties += [
            lambda s: replace(s, nans=UNKNOWN),
            lambda s: replace(s, nans=exact.rows + 1),
            lambda s: replace(s, upper=math.nan) if exact.nans else s,
            lambda s: replace(s, lower=math.nan, upper=math.nan) if exact.nans else s,
            lambda s: replace(s, lower=_other_zero(s.lower), upper=_other_zero(s.upper)),
        ]
    if isinstance(exact.lower, str | bytes):
        liberties.append(lambda s: replace(s, lower=s.lower and s.lower[:1], upper=s.upper and _cut_above(s.upper)))
    chosen = st.lists(st.sampled_from(liberties), max_size=3, unique=True)
    last = st.sampled_from([_as_is, _as_is, _swapped])
    return st.builds(lambda first, then: _apply([*first, then], exact), chosen, last)


def _as_is(summary: Summary) -> Summary:
    return summary


def _swapped(summary: Summary) -> Summary:
    """A lower bound above its upper bound, which must be ignored."""
    if summary.lower is None or summary.upper is None or order_key(summary.lower) == order_key(summary.upper):
        return summary
    return replace(summary, lower=summary.upper, upper=summary.lower)


def _apply(liberties: list[Callable[[Summary], Summary]], summary: Summary) -> Summary:
    for liberty in liberties:
        summary = liberty(summary)
    return summary


def _looser(type_: PrimitiveType, bound: Any, *, below: bool) -> Any:
    if bound is None or is_nan(bound):
        return bound
    key = order_key(bound)
    candidates = [v for v in (*neighbours(type_, bound), *edges(type_)) if not is_nan(v)]
    outside = [v for v in candidates if (order_key(v) < key if below else order_key(v) > key)]
    return (max if below else min)(outside, key=order_key, default=bound)


def _other_zero(bound: Any) -> Any:
    return -bound if bound == 0 else bound


def _cut_above(upper: Any) -> Any:
    """The first character or byte plus one, as writers truncate an upper bound; None if there is no next one."""
    if isinstance(upper, bytes):
        return bytes([upper[0] + 1]) if upper[0] < 255 else None
    following = ord(upper[0]) + 1
    following = 0xE000 if 0xD800 <= following < 0xE000 else following
    return chr(following) if following <= 0x10FFFF else None


def column_stats(type_: PrimitiveType, summaries: list[Summary]) -> ColumnStats:
    """Summaries in the columnar form the evaluator takes."""
    counts = [np.array([getattr(s, name) for s in summaries], dtype=np.int64) for name in ("rows", "nulls", "nans")]
    return ColumnStats.from_counts(*counts, *(bound(type_, [getattr(s, name) for s in summaries]) for name in BOUNDS))


BOUNDS = ("lower", "upper")


def bound(type_: PrimitiveType, values: list[Any]) -> Bound:
    """Canonical values, None where there is no bound, in the physical domain of their type."""
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    if isinstance(type_, DecimalType) and type_.precision > 18:
        return Bound(pa.array(values, type=pa.decimal128(type_.precision, type_.scale)), valid)
    if isinstance(type_, DecimalType):
        values = [None if value is None else unscaled_of(value, type_.scale) for value in values]
    if isinstance(type_, StringType):
        return Bound(pa.array(values, type=pa.string()), valid)
    if isinstance(type_, UUIDType | FixedType | BinaryType):
        return Bound(pa.array(values, type=pa.binary()), valid)
    filled = [0 if value is None else value for value in values]
    return Bound(np.array(filled, dtype=np.float64 if is_float(type_) else np.int64), valid)


@dataclass(frozen=True)
class Probe:
    """Bloom filters without false positives: the bit patterns by column and container."""

    patterns: dict[int, list[set[bytes]]] = field(default_factory=dict)

    def might_contain(self, column: Column, values: tuple[Value, ...]) -> npt.NDArray[np.bool_] | None:
        if column.field_id not in self.patterns:
            return None
        wanted = {pattern(value) for value in values}
        return np.array([bool(wanted & there) for there in self.patterns[column.field_id]], dtype=np.bool_)


def pattern(value: Any) -> bytes:
    """The hashed bytes, including the sign of a zero and the payload of a NaN."""
    if is_nan(value):
        return b"nan with a payload of its own"
    return struct.pack("<d", value) if isinstance(value, float) else repr(value).encode()


def _patterns(data: Dataset, column: Column, cut: list[range]) -> list[set[bytes]]:
    values = [row[column.field_id] for row in data.rows]
    return [{pattern(values[i]) for i in rows if values[i] is not None and not is_nan(values[i])} for rows in cut]


# --- the check of statistics: they must admit every value their container holds


def assert_admits(stats: ColumnStats, containers: Sequence[int], values: Sequence[Any], type_: PrimitiveType) -> None:
    """Assert that statistics admit each value in its container, nulls and NaN included."""
    lowers, uppers = listed(stats.lower), listed(stats.upper)
    for container, value in zip(containers, values, strict=True):
        if value is None:
            assert stats.may_null[container], f"a null in container {container} is ruled out"
        elif isinstance(value, float) and math.isnan(value):
            assert stats.may_nan[container], f"a NaN in container {container} is ruled out"
        else:
            number = physical(type_, value)
            assert stats.may_value[container], f"{value!r} in container {container} is ruled out"
            lower, upper = lowers[container] if lowers else None, uppers[container] if uppers else None
            assert lower is None or lower <= number, f"{value!r} is below the lower bound {lower!r} of {container}"
            assert upper is None or number <= upper, f"{value!r} is above the upper bound {upper!r} of {container}"


def listed(bound: Bound | None) -> list[Any]:
    """Bounds as Python values, None where there is none."""
    if bound is None:
        return []
    values = bound.values.tolist() if isinstance(bound.values, np.ndarray) else bound.values.to_pylist()
    return [value if valid else None for value, valid in zip(values, bound.valid.tolist(), strict=True)]
