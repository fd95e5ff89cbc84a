"""`floeplan scan` of a predicate that only Spark can evaluate: the plan's files, read by Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.cli.main import main
from tests.support.tables.two_specs import two_spec_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines
WHERE = "id < 250 AND soundex(region) = soundex('eu')"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return two_spec_table(tmp_path_factory.mktemp("events"))


@pytest.fixture
def scan(spark: SparkSession, table: Table, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command; it uses the existing session."""

    def scan(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main(["scan", table.metadata_location, *arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return scan


@pytest.fixture
def expected(scan: Any) -> list[int]:
    code, answer = scan("--where", "id < 250 AND region = 'eu'", "--columns", "id")
    assert code == 0
    return sorted(row["id"] for row in answer["data"])


def test_rows_and_counts(scan: Any, expected: list[int]) -> None:
    code, answer = scan("--where", WHERE, "--columns", "id")
    assert (code, sorted(row["id"] for row in answer["data"])) == (0, expected)
    assert scan("--where", WHERE, "--count") == (0, {"rows": len(expected)})
    code, answer = scan("--where", WHERE, "--columns", "id", "--limit", "3")
    assert (code, answer["rows"], {row["id"] for row in answer["data"]} <= set(expected)) == (0, 3, True)


def test_deleted_rows_are_not_returned_for_such_a_predicate_and_not_counted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deleted rows are read by Python tasks, which cannot evaluate the function."""
    table = two_spec_table(tmp_path)
    fp.delete(table, "id = 7", mode="merge-on-read")
    scan = ["scan", table.refresh().metadata_location, "--where", "soundex(region) > '' AND id < 20", "--json"]
    for count in ([], ["--count"]):
        assert main([*scan, "--columns", "id", *count]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == 19
        assert main([*scan, "--columns", "id,_deleted", *count]) == 1
        message = json.loads(capsys.readouterr().out)["error"]["message"]
        assert message == "the function soundex() cannot be evaluated outside Spark"


def test_to_a_file(scan: Any, expected: list[int], tmp_path: Path) -> None:
    output = tmp_path / "rows.parquet"
    assert scan("--where", WHERE, "--columns", "id", "-o", str(output))[0] == 0
    assert sorted(pq.read_table(output)["id"].to_pylist()) == expected


def test_an_error_on_a_row_is_one_line(scan: Any) -> None:
    code, answer = scan("--where", "element_at(array(region), 2) = 'eu'", "--count")
    assert code == 1
    assert answer["error"]["kind"] == "spark-failed"
    assert "INVALID_ARRAY_INDEX" in answer["error"]["message"]
