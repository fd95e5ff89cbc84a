"""Without Spark, everything that does not need it works, and everything else is a one-line error.

The environment links the packages of the test environment, except PySpark and its dependencies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest

import floeplan

pytestmark = pytest.mark.unit

LEFT_OUT = ("pyspark", "py4j", "grpc", "googleapis", "__editable__", "floeplan", "_virtualenv", "distutils-precedence")

PLAIN_USE = """
import sys
import pyarrow as pa
import pyarrow.parquet as pq
import floeplan as fp
from floeplan.catalog import open_catalog

catalog = open_catalog()
catalog.create_namespace("db")
rows = pa.table({"id": list(range(100)), "region": ["eu", "us"] * 50})
catalog.create_table("db.events", rows.schema)
fp.append("db.events", rows)
fp.sql(None, "ALTER TABLE db.events ADD PARTITION FIELD region")
fp.append("db.events", rows)
plan = fp.plan_scan("db.events", "region = 'eu' AND id < 10")
assert plan.to_arrow().num_rows == 10, plan.summary
assert fp.delete("db.events", "id = 4").rows_deleted == 2
assert fp.rewrite_data_files("db.events", options={"rewrite-all": "true"}).files_added > 0
assert fp.upgrade_spec("db.events").files_left == 0
assert fp.doctor("db.events").healthy
pq.write_table(rows, "file.parquet", row_group_size=10)
result = fp.prune.PruneRequest("file.parquet").with_predicate("id = 42").prune()
assert list(result.row_groups) == [4]
assert "pyspark" not in sys.modules
"""

COMMANDS = """
from floeplan.cli.main import COMMANDS, load_command
for name in COMMANDS:
    assert load_command(name).help, name
"""

READ = """
import floeplan as fp
for name in ("read", "plan_read"):
    try:
        getattr(fp, name)
    except fp.FloeplanError as error:
        assert error.message == f"fp.{name} needs Spark; install floeplan[spark]", error.message
    else:
        raise AssertionError(name)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to all packages except those of Spark."""
    installed = Path(pyarrow.__file__).parents[1]
    folder = tmp_path_factory.mktemp("packages")
    for package in installed.iterdir():
        if not package.name.startswith(LEFT_OUT) and package.suffix != ".pth":
            (folder / package.name).symlink_to(package)
    (folder / "floeplan").symlink_to(Path(floeplan.__file__).parent)
    return folder


def run(packages: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these packages and no others."""
    environment = os.environ | {"PYTHONPATH": str(packages), "FLOEPLAN_HOME": str(home)}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home.parent)


@pytest.mark.parametrize("program", [COMMANDS, READ], ids=["commands", "read"])
def test_what_needs_no_spark_works_without_it(packages: Path, floeplan_home: Path, program: str) -> None:
    done = run(packages, floeplan_home, "-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_tables_are_written_and_read_without_spark(packages: Path, floeplan_home: Path) -> None:
    done = run(packages, floeplan_home, "-c", PLAIN_USE)
    assert done.returncode == 0, done.stderr
    (floeplan_home.parent / "reports").mkdir()
    for command in ("audit --reports reports", "plan db.events --spark local[1]"):
        done = run(packages, floeplan_home, "-m", "floeplan.cli", *command.split())
        assert done.returncode == 1
        assert done.stderr.startswith("floeplan: ")
        assert "floeplan[spark]" in done.stderr
        assert done.stderr.count("\n") == 1
