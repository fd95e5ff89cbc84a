"""Every Python, shell and SQL block of every documentation page runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.notebook import differences
from tests.support.documents import ROOT, DocumentRunner, blocks, needs_spark, needs_workers, notebook_cells

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGES = [page for page in sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]) if blocks(page)]
SHARING = [page for page in PAGES if needs_spark(page) and not needs_workers(page)]
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))


@pytest.fixture
def runner(floeplan_home: Path, monkeypatch: pytest.MonkeyPatch) -> DocumentRunner:
    """Runs documents in a temporary folder, with Floeplan on the path and reports in the same folder."""
    folder = floeplan_home.parent
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FLOEPLAN_HOME", str(folder / ".floeplan"))
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(folder / "reports"))
    return DocumentRunner(folder)


@pytest.mark.parametrize("page", [page for page in PAGES if not needs_spark(page)], ids=lambda page: page.stem)
def test_blocks_of_a_page_run(page: Path, runner: DocumentRunner) -> None:
    runner.prepare()
    runner.run(page)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=() if page.stem == "README" else pytest.mark.matrix) for page in SHARING],
)
def test_blocks_of_a_page_run_with_spark(page: Path, runner: DocumentRunner, spark: SparkSession) -> None:
    runner.spark = spark
    runner.prepare()
    runner.run(page)


@pytest.mark.matrix
@pytest.mark.parametrize("page", [page for page in PAGES if needs_workers(page)], ids=lambda page: page.stem)
def test_blocks_of_a_page_run_with_a_new_session(page: Path, runner: DocumentRunner) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "tests.support.documents", str(page)]
    done = subprocess.run(command, cwd=runner.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_from_top_to_bottom_and_leaves_nothing_behind(
    notebook: Path, runner: DocumentRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    names: dict[str, object] = {"__name__": "notebook", "display": lambda *_: None}
    *cells, last = notebook_cells(notebook)
    for cell in cells:
        exec(compile(cell, notebook.name, "exec"), names)
    assert any(temporary.iterdir())
    exec(compile(last, notebook.name, "exec"), names)
    assert not any(temporary.iterdir())


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_outputs_of_a_notebook_are_the_stored_ones(notebook: Path, runner: DocumentRunner) -> None:
    assert differences(notebook) == [], "if intended, run scripts/notebook.py and commit the notebook"
