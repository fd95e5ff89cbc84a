"""The recipes for Airflow, Dagster, dbt and cron, run by their real packages in environments of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import floeplan as fp
from floeplan.catalog import open_catalog
from tests.support.documents import ROOT
from tests.support.environments import BIN, environment
from tests.support.tables.commits import live_entries
from tests.support.tables.two_specs import EVENTS, events

pytestmark = pytest.mark.engines

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
    lake.create_table("db.small", EVENTS)
    lake.close()
    add_files()
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "FLOEPLAN_POLICY": ""}


def add_files() -> None:
    """Append small files to the table."""
    table = open_catalog().load_table("db.small")
    for number in range(12):
        fp.append(table, events(number * 10, number * 10 + 10), fast=True)


def run(command: list[str], variables: Mapping[str, str], folder: Path) -> str:
    done = subprocess.run(command, env=dict(variables), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def files_of_the_table() -> int:
    return len(live_entries(open_catalog().load_table("db.small")))


@pytest.mark.foreign
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


@pytest.mark.foreign
def test_the_job_runs_in_dagster(variables: dict[str, str]) -> None:
    python = environment("dagster") / "python"
    run([str(python), "-c", DAGSTER], variables | {"DAGSTER_DISABLE_TELEMETRY": "1"}, RECIPES)
    assert files_of_the_table() == 1


PROJECT = """
name: shop
profile: shop
models: {+materialized: table}
on-run-end: "{{ floeplan_maintain(results, 'shop') }}"
"""
HOOK = """{{ config(post_hook="SELECT floeplan_maintain(['{{ this.schema }}.{{ this.identifier }}'])") }}"""


@pytest.fixture
def dbt(variables: dict[str, str], tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """``dbt run`` of one model, in a project with the plugin and the macro of the recipe."""
    program, project = environment("dbt-duckdb", "dbt-core<1.11", "numpy") / "dbt", tmp_path / "shop"
    shutil.copytree(RECIPES / "dbt", project)
    (project / "models").mkdir()
    duckdb = {"type": "duckdb", "path": str(tmp_path / "shop.duckdb"), "schema": "db", "module_paths": ["."]}
    outputs = {"dev": {**duckdb, "plugins": [{"module": "floeplan_dbt"}]}}
    (project / "dbt_project.yml").write_text(PROJECT)
    (project / "profiles.yml").write_text(json.dumps({"shop": {"target": "dev", "outputs": outputs}}))
    environ = variables | {"DBT_SEND_ANONYMOUS_USAGE_STATS": "False"}

    def run_model(name: str, text: str) -> subprocess.CompletedProcess[str]:
        (project / f"models/{name}.sql").write_text(text)
        command = [str(program), "run", "--profiles-dir", ".", "--select", name]
        return subprocess.run(command, env=environ, cwd=project, capture_output=True, text=True)

    return run_model


@pytest.mark.matrix
def test_the_hooks_of_dbt_maintain_what_it_has_built(
    dbt: Callable[..., subprocess.CompletedProcess[str]], variables: dict[str, str], tmp_path: Path
) -> None:
    """DuckDB runs the models, and their names are those of tables of the lake."""
    done = dbt("small", "SELECT 1 AS id")
    assert "floeplan: db.small compact done" in done.stdout, done.stdout + done.stderr
    assert (done.returncode, files_of_the_table()) == (0, 1)
    add_files()
    done = dbt("small", f"{HOOK} SELECT 1 AS id")
    assert "floeplan: nothing to do" in done.stdout  # at the end of the run, after the post-hook
    assert (done.returncode, files_of_the_table()) == (0, 1)
    add_files()
    run([sys.executable, str(RECIPES / "dbt/after_dbt.py"), "target"], variables, tmp_path / "shop")
    assert files_of_the_table() == 1
    failed = dbt("gone", f"{HOOK} SELECT 1 AS id")
    assert "no table 'db.gone' in catalog local" in failed.stdout
    assert failed.returncode == 1


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
