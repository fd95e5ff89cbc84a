"""The recipes for Airflow, Dagster, dbt and cron, run by their real packages in environments of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import floeplan as fp
from floeplan.catalog import open_catalog
from tests.support.documents import ROOT
from tests.support.environments import BIN, environment
from tests.support.tables.commits import live_entries
from tests.support.tables.two_specs import EVENTS, events

pytestmark = [pytest.mark.engines, pytest.mark.foreign]

RECIPES = ROOT / "examples/maintain"
DAGSTER = """
import dagster_job
assert dagster_job.maintain_tables.execute_in_process().success
assert dagster_job.definitions.get_schedule_def("maintain_tables_schedule").cron_schedule == "0 2 * * *"
"""


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a scheduler that finds ``floeplan`` and a catalog with a table of small files."""
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path / "lake"))
    monkeypatch.setenv("HOME", str(tmp_path))
    lake = open_catalog()
    lake.create_namespace("db")
    table = lake.create_table("db.small", EVENTS)
    for number in range(12):
        fp.append(table, events(number * 10, number * 10 + 10), fast=True)
    lake.close()
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "FLOEPLAN_POLICY": ""}


def run(command: list[str], variables: Mapping[str, str], folder: Path) -> str:
    done = subprocess.run(command, env=dict(variables), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def files_of_the_table() -> int:
    return len(live_entries(open_catalog().load_table("db.small")))


def test_the_dag_runs_in_airflow(variables: dict[str, str], tmp_path: Path) -> None:
    airflow, dags = environment("apache-airflow") / "airflow", tmp_path / "dags"
    dags.mkdir()
    shutil.copy(RECIPES / "airflow_dag.py", dags)
    variables |= {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    for arguments in (["db", "migrate"], ["dags", "reserialize"]):
        run([str(airflow), *arguments], variables, tmp_path)
    assert "state=success" in run([str(airflow), "dags", "test", "maintain_tables"], variables, tmp_path)
    assert files_of_the_table() == 1


def test_the_job_runs_in_dagster(variables: dict[str, str]) -> None:
    python = environment("dagster") / "python"
    run([str(python), "-c", DAGSTER], variables | {"DAGSTER_DISABLE_TELEMETRY": "1"}, RECIPES)
    assert files_of_the_table() == 1


def test_tables_that_dbt_has_built_are_maintained(variables: dict[str, str], tmp_path: Path) -> None:
    """DuckDB runs the model; what dbt records about it names the table."""
    dbt, project = environment("dbt-duckdb", "dbt-core<1.11") / "dbt", tmp_path / "shop"
    (project / "models").mkdir(parents=True)
    (project / "dbt_project.yml").write_text("name: shop\nprofile: shop\nmodels:\n  +materialized: table\n")
    duckdb = {"type": "duckdb", "path": str(tmp_path / "shop.duckdb"), "schema": "db"}
    (project / "profiles.yml").write_text(json.dumps({"shop": {"target": "dev", "outputs": {"dev": duckdb}}}))
    (project / "models/small.sql").write_text("SELECT 1 AS id")
    quiet = {"DBT_SEND_ANONYMOUS_USAGE_STATS": "False"}
    assert "PASS=1" in run([str(dbt), "run", "--profiles-dir", "."], variables | quiet, project)
    run([sys.executable, str(RECIPES / "after_dbt.py"), "target"], variables, project)
    assert files_of_the_table() == 1


def test_the_line_of_the_crontab_runs(variables: dict[str, str], tmp_path: Path) -> None:
    """As cron runs it: by the shell, in the user's home."""
    line = (RECIPES / "crontab").read_text().splitlines()[-1]
    *times, command = line.split(maxsplit=5)
    assert all(re.fullmatch(r"[\d*/,-]+", time) for time in times)
    (tmp_path / "policy.toml").write_text("[defaults]\ncompact-min-files = 10\n")
    command = command.replace("/etc/floeplan", str(tmp_path)).replace("/var/lib/node_exporter", str(tmp_path))
    assert run(["/bin/sh", "-c", command], variables, tmp_path) == ""
    assert files_of_the_table() == 1
    assert "floeplan_maintain_" in (tmp_path / "floeplan.prom").read_text()
