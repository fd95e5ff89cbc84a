"""The judge that lives in another process: what it says of a table, and that it outlives its process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable, Table

from tests.support.oracles.duckdb_reader import DuckDb, DuckDbError, key_columns
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

ROWS = pa.table({"pk": [3, 1, 2], "n": pa.array([None, 7, 8], pa.int64())})
KEYS = key_columns(ROWS.to_pylist())


@pytest.fixture
def judge() -> Iterator[DuckDb]:
    reader = DuckDb()
    yield reader
    reader.close()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = catalog(tmp_path).create_table("db.judged", ROWS.schema)
    made.append(ROWS)
    return made


def test_an_original_that_is_read_right_is_one_to_judge_by(judge: DuckDb, table: Table) -> None:
    assert judge.keys(table) == KEYS == [(1, 7), (2, 8), (3, None)]
    assert judge.reads(table, KEYS)
    assert not judge.reads(table, KEYS[1:])


def test_a_table_that_cannot_be_read_is_no_original_and_spoils_no_other(
    judge: DuckDb, table: Table, tmp_path: Path
) -> None:
    path = tmp_path / "cut.metadata.json"
    path.write_text(table.metadata.model_dump_json()[:100])
    cut = StaticTable(table.name(), table.metadata, str(path), table.io, table.catalog)
    with pytest.raises(DuckDbError):
        judge.keys(cut)
    assert not judge.reads(cut, KEYS)
    assert judge.reads(table, KEYS)


def test_the_end_of_its_process_is_an_error_of_that_table_alone(judge: DuckDb, table: Table) -> None:
    assert judge.reads(table, KEYS)
    assert judge._process is not None
    judge._process.kill()
    judge._process.wait()
    with pytest.raises(DuckDbError, match="ended"):
        judge.keys(table)
    assert judge.reads(table, KEYS)
