"""Ctrl-C and SIGTERM: a message at once, no files left behind, and a report of what was committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.catalog import open_catalog
from tests.support.tables.commits import live_entries
from tests.support.tables.two_specs import EVENTS, events

pytestmark = pytest.mark.unit

REWRITE = ["rewrite", "db.events", "--option", "rewrite-all=true", "--progress", "json"]
READING = """
from floeplan.rewrite.progress import JsonProgress
read = JsonProgress.read
def interrupted(self, size):
    JsonProgress.read = read
    signalled()
    read(self, size)
JsonProgress.read = interrupted
"""
COMMITTING = """
from floeplan.transaction.catalog_commit import CommitOptions
step = CommitOptions.step
def interrupted(self, name):
    step(self, name)
    if name == "before-commit":
        signalled()
CommitOptions.step = interrupted
"""
STARTING = """
sent = threading.Event()
start = threading.Thread.start
def held(self):
    start(self)
    if self.name.startswith("floeplan-task"):
        sent.wait()
threading.Thread.start = held
"""
"""The worst moment: the thread that gets the signal runs, but its pool does not know it yet."""
WRITING = f"""
{STARTING}
from floeplan.dml import append
written = append._write_parquet_rows
def interrupted(target, paths, attempt):
    signalled()
    sent.set()
    return written(target, paths, attempt)
append._write_parquet_rows = interrupted
"""
AFTER_THE_TASKS = """
from floeplan.tasks.runner import LocalThreads
run_all = LocalThreads.run
def interrupted(*arguments):
    done = run_all(*arguments)
    signalled()
    return done
LocalThreads.run = interrupted
"""
BEFORE_THE_COMMIT = """
from floeplan.dml import append, delete_update
from floeplan.dml.commit import commit_changes
def interrupted(*arguments, **options):
    signalled()
    return commit_changes(*arguments, **options)
append.commit_changes = delete_update.commit_changes = interrupted
"""
AFTER_A_GROUP = """
from concurrent.futures import Future
result = Future.result
def interrupted(self, timeout=None):
    if sys._getframe(1).f_code.co_name == "run_jobs":
        Future.result = result
        signalled()
    return result(self, timeout)
Future.result = interrupted
"""
IMPORTING = """
class Finder:
    def find_spec(self, fullname, path, target=None):
        if fullname == {module!r}:
            sys.meta_path.remove(self)
            signalled()
sys.meta_path.insert(0, Finder())
"""
BEFORE_A_COMMIT_OF_GROUPS = """
from floeplan.rewrite.execute import _Run
commit = _Run._commit
def interrupted(self, groups):
    signalled()
    return commit(self, groups)
_Run._commit = interrupted
"""


@pytest.fixture
def table(floeplan_home: Path) -> Table:
    """Two files in each of three regions, in the embedded catalog."""
    catalog = open_catalog()
    catalog.create_namespace("db")
    table = catalog.create_table("db.events", EVENTS)
    with table.update_spec() as update:
        update.add_identity("region")
    fp.append(table, events(0, 150))
    fp.append(table, events(150, 300))
    return table


def run(arguments: list[str], signal: str, when: str) -> subprocess.CompletedProcess[str]:
    """Run the program, which sends itself a signal; a test run in the background ignores SIGINT."""
    code = f"""
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
def signalled():
    # To this thread: the signal is pending when the call returns.
    signal.pthread_kill(threading.get_ident(), signal.{signal})
{when}
from floeplan.cli.__main__ import run
sys.argv[1:] = {arguments!r}
run()
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ.copy())


def data_files(home: Path) -> set[Path]:
    return set(home.rglob("*.parquet"))


@pytest.mark.parametrize("signal", [pytest.param("SIGINT", marks=pytest.mark.matrix), "SIGTERM"])
def test_a_stopped_rewrite_leaves_no_files(table: Table, floeplan_home: Path, signal: str) -> None:
    before = data_files(floeplan_home)
    done = run(REWRITE, signal, READING)
    assert done.returncode == 130, done.stderr
    assert "floeplan: stopping…\n" in done.stderr
    assert "nothing was committed; run it again to continue" in done.stderr.splitlines()[-1]
    assert data_files(floeplan_home) == before
    assert table.refresh().metadata.current_snapshot_id == table.snapshots()[-1].snapshot_id


@pytest.mark.parametrize("module", ["typer.core", "floeplan.cli.commands.dml", "pyiceberg.schema"])
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_program_that_is_stopped_while_it_starts_says_so(table: Table, signal: str, module: str) -> None:
    command = ["delete", "db.events", "--where", "id = 7"]
    done = run(command, signal, IMPORTING.format(module=module))
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "floeplan: stopping…\nfloeplan: interrupted: nothing was committed\n"
    done = run([*command, "--json"], signal, IMPORTING.format(module=module))
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["committed"]) == (130, "interrupted", False)
    assert done.stderr == "floeplan: stopping…\n"


def test_a_commit_is_finished_before_the_program_stops(table: Table) -> None:
    done = run(["delete", "db.events", "--where", "id = 7"], "SIGTERM", COMMITTING)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "floeplan: stopping…\nfloeplan: interrupted: 1 commit stays\n"
    assert fp.plan_scan(table.refresh(), options=fp.ScanOptions(report=False)).count() == 299


@pytest.mark.parametrize("signal", [pytest.param("SIGINT", marks=pytest.mark.matrix), "SIGTERM"])
def test_a_stopped_append_leaves_no_files(table: Table, floeplan_home: Path, tmp_path: Path, signal: str) -> None:
    for number in range(2):
        pq.write_table(events(0, 90), tmp_path / f"{number}.parquet")
    before, snapshot_id = data_files(floeplan_home), table.metadata.current_snapshot_id
    files = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    done = run(["append", "db.events", *files, "--json"], signal, WRITING)
    assert done.returncode == 130, done.stderr
    assert '"kind": "interrupted"' in done.stdout
    assert '"committed": false' in done.stdout
    assert data_files(floeplan_home) == before
    assert table.refresh().metadata.current_snapshot_id == snapshot_id


@pytest.mark.parametrize("when", [AFTER_THE_TASKS, BEFORE_THE_COMMIT], ids=["after-the-tasks", "before-the-commit"])
@pytest.mark.parametrize("command", ["append", pytest.param("delete", marks=pytest.mark.matrix)])
def test_files_of_finished_tasks_are_removed(
    table: Table, floeplan_home: Path, tmp_path: Path, command: str, when: str
) -> None:
    """A signal after the files are written, and before anything else has happened to them."""
    pq.write_table(events(0, 90), tmp_path / "new.parquet")
    arguments = {"append": [str(tmp_path / "new.parquet")], "delete": ["--where", "id % 2 = 0"]}[command]
    before, snapshot_id = data_files(floeplan_home), table.metadata.current_snapshot_id
    done = run([command, "db.events", *arguments], "SIGTERM", when)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "floeplan: stopping…\nfloeplan: interrupted: nothing was committed\n"
    assert data_files(floeplan_home) == before
    assert table.refresh().metadata.current_snapshot_id == snapshot_id


@pytest.mark.parametrize("when", [AFTER_A_GROUP, BEFORE_A_COMMIT_OF_GROUPS], ids=["after-a-group", "before-a-commit"])
def test_files_of_finished_groups_are_committed_or_removed(table: Table, floeplan_home: Path, when: str) -> None:
    before = data_files(floeplan_home)
    done = run(REWRITE, "SIGTERM", when)
    assert done.returncode == 130, done.stderr
    assert "floeplan: stopping…\n" in done.stderr
    committed = {Path(entry.removeprefix("file://")) for entry in live_entries(table.refresh()).path.to_pylist()}
    assert data_files(floeplan_home) - before == committed - before
    assert fp.plan_scan(table, options=fp.ScanOptions(report=False)).count() == 300
