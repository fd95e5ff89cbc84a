"""Random changes of an evolved table: the result equals a row-by-row evaluation."""

from __future__ import annotations

from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.dml import delete_update as planning
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.rows.evaluate import matching_mask
from floeplan.scan.model import ScanOptions
from tests.support.tables.two_specs import REGIONS, two_spec_table

pytestmark = pytest.mark.property

FORKS = count()
QUIET = ScanOptions(report=False)

leaves = st.one_of(
    st.tuples(st.sampled_from(["<", "<=", "=", "<>", ">"]), st.integers(-1, 301)).map(lambda c: f"id {c[0]} {c[1]}"),
    st.tuples(st.integers(2, 7), st.integers(0, 6)).map(lambda c: f"id % {c[0]} = {c[1]}"),
    st.sampled_from([*REGIONS, "xx"]).map(lambda region: f"region = '{region}'"),
    st.integers(0, 150).map(lambda value: f"v > {value}.25"),
    st.sampled_from(["v IS NULL", "region LIKE 'e%'", "length(region) = 2", "NULL", "FALSE"]),
    st.integers(1, 13).map(lambda day: f"ts >= TIMESTAMP_NTZ '2024-03-{day:02}'"),
    st.lists(st.integers(0, 300), min_size=1, max_size=4).map(lambda ids: f"id IN ({', '.join(map(str, ids))})"),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}) AND ({pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}) OR ({pair[1]})"),
        inner.map(lambda text: f"NOT ({text})"),
    ),
    max_leaves=4,
)
modes = st.sampled_from(["copy-on-write", "merge-on-read"])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Files of two specs, some of them with deletes."""
    table = two_spec_table(tmp_path_factory.mktemp("base"))
    fp.delete(table, "id % 11 = 3", mode="merge-on-read")
    return table


def fork(table: Table) -> Table:
    assert isinstance(table.catalog, SqlCatalog)
    return table.catalog.register_table(f"db.fork_{next(FORKS)}", table.metadata_location)


def rows(table: Table) -> pa.Table:
    return fp.plan_scan(table, options=QUIET).to_arrow().sort_by("id")


def matching(where: str, data: pa.Table, table: Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return matching_mask(compile_predicate(where, table.schema()).predicate, data, table.schema())


@settings(max_examples=max(15, settings.default.max_examples // 4))
@given(
    steps=st.lists(st.tuples(st.booleans(), conditions, modes), min_size=1, max_size=3), small=st.sampled_from((0, 99))
)
def test_deletes_and_updates(base: Table, steps: list[tuple[bool, str, str]], small: int) -> None:
    """With and without files large enough for footer planning."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "SMALL_FILE_BYTES", small << 20)
        check_steps(base, steps)


def check_steps(base: Table, steps: list[tuple[bool, str, str]]) -> None:
    table = fork(base)
    expected = rows(table)
    for deletes, where, mode in steps:
        hit = matching(where, expected, table)
        if deletes:
            result = fp.delete(table, where, mode=mode)
            assert result.rows_deleted == hit.sum()
            expected = expected.filter(pa.array(~hit))
        else:
            result = fp.update(table, {"v": "id + 0.5", "region": "concat(region, '!')"}, where, mode=mode)
            assert result.rows_updated == hit.sum()
            changed = expected.to_pylist()
            for row in np.flatnonzero(hit).tolist():
                changed[row] |= {"v": changed[row]["id"] + 0.5, "region": changed[row]["region"] + "!"}
            expected = pa.Table.from_pylist(changed, expected.schema)
        assert (result.snapshot_id is None) == (not hit.any())
    assert rows(table).to_pylist() == expected.to_pylist()


@settings(max_examples=max(15, settings.default.max_examples // 4))
@given(
    keys=st.lists(st.integers(-2, 310), unique=True, max_size=40),
    update=conditions,
    by_source=st.none() | conditions,
    mode=modes,
)
def test_merges(base: Table, keys: list[int], update: str, by_source: str | None, mode: str) -> None:
    table = fork(base)
    before = rows(table)
    merge = fp.merge(table, pa.table({"key": pa.array(keys, pa.int64())}), "id = key", mode=mode)
    merge = merge.when_matched_update({"v": "key * 1.0"}, update).when_matched_delete("key % 2 = 0")
    merge = merge.when_not_matched_insert({"id": "key"}, "key > 0")
    if by_source is not None:
        merge = merge.when_not_matched_by_source_delete(by_source)
    merge.execute()
    hit, alone = matching(update, before, table), matching(by_source or "FALSE", before, table)
    expected = []
    for number, row in enumerate(before.to_pylist()):
        if row["id"] not in keys:
            expected += [] if alone[number] else [row]
        elif hit[number]:
            expected.append(row | {"v": float(row["id"])})
        elif row["id"] % 2:
            expected.append(row)
    there = set(before["id"].to_pylist())
    expected += [{"id": k, "region": None, "ts": None, "v": None} for k in keys if k not in there and k > 0]
    assert rows(table).to_pylist() == sorted(expected, key=lambda row: row["id"])
