"""Start-up: which libraries help, completion, a command and a first plan import, so that no one waits for others."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.audit import advisor, candidates
from floeplan.cli import demo_archive, demo_command
from floeplan.cli.commands import audit, maintenance, rewrite
from floeplan.cli.main import COMMANDS
from floeplan.maintenance import doctor, orphans
from floeplan.rewrite.spec_upgrade import upgrade
from floeplan.rewrite.strategies.registry import strategy_names
from floeplan.times import parse_age
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.unit

LIBRARIES = (
    "floeplan.parquet.footer.bloom",
    "asyncio",
    "datafusion",
    "duckdb",
    "numpy",
    "obstore",
    "pandas",
    "polars",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pydantic",
    "pyiceberg",
    "pyiceberg.catalog",
    "pyspark",
    "requests",
    "rich",
    "sqlalchemy",
    "sqlglot",
)
PLAIN = "region = 'eu' AND id >= 150 OR ts IN (TIMESTAMP '2024-03-05')"
PLANNING = {"numpy", "pyarrow", "pydantic", "pyiceberg"}
CATALOG = PLANNING | {"asyncio", "pyarrow.compute", "pyarrow.dataset", "pyiceberg.catalog", "rich", "sqlalchemy"}
"""SQLAlchemy imports asyncio, and PyIceberg's FileIO the datasets and compute functions of pyarrow."""
REPORT = (
    f"import sys; open(sys.argv[1], 'w').write(' '.join([str(len(sys.modules)), *sys.modules.keys() & {LIBRARIES!r}]))"
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return two_spec_table(tmp_path_factory.mktemp("home"))


@pytest.fixture
def imported(table: Table, tmp_path: Path) -> Any:
    """Run code in a process of its own; returns the libraries it imported and the number of all modules."""
    home = Path(table.metadata_location.removeprefix("file://")).parents[3]

    def imported(code: str, **environment: str) -> tuple[set[str], int]:
        settings = {
            "FLOEPLAN_HOME": str(home),
            "FLOEPLAN_CACHE": str(tmp_path / "cache"),
            "FLOEPLAN_REPORTS": str(tmp_path),
        }
        at_exit = f"import atexit; atexit.register(lambda: exec({REPORT!r}))\n"
        command = [sys.executable, "-c", at_exit + code, str(tmp_path / "modules")]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings | environment)
        assert done.returncode == 0, done.stderr
        count, *libraries = (tmp_path / "modules").read_text().split()
        return set(libraries), int(count)

    return imported


def program(*arguments: str) -> str:
    return f"from floeplan.cli import main; raise SystemExit(main.main({list(arguments)!r}, program=True))"


def test_importing_the_package_imports_nothing_else(imported: Any) -> None:
    assert imported("import floeplan") == (set(), pytest.approx(60, abs=60))


def test_the_list_of_commands_imports_no_command(imported: Any) -> None:
    shown = "from floeplan.cli import main\nfor arguments in (['--help'], ['-h'], []): assert main.main(arguments) == 0"
    libraries, modules = imported(shown)
    assert libraries == {"rich"}
    assert modules < 450


def test_versions_and_completion_import_no_library(imported: Any) -> None:
    assert imported(program("--version"))[0] == set()
    completing = {"_FLOEPLAN_COMPLETE": "complete_bash", "COMP_WORDS": "floeplan re", "COMP_CWORD": "1"}
    assert imported(program(), **completing)[0] == set()


def test_help_of_every_command_imports_no_library(imported: Any) -> None:
    """All in one process: what one of them imports, all have."""
    every = f"from floeplan.cli import main\nfor name in {list(COMMANDS)!r}: assert main.main([name, '-h']) == 0"
    libraries, modules = imported(every)
    assert libraries == {"rich"}
    assert modules < 480


def test_plan_needs_neither_the_parser_nor_pandas(imported: Any) -> None:
    libraries, modules = imported(program("plan", "db.events", "--where", PLAIN))
    assert libraries == CATALOG
    assert modules < 950


def test_first_plans_import_what_planning_takes(imported: Any, table: Table) -> None:
    """All in one process: with and without a predicate, footers and the cache."""
    code = (
        "import floeplan as fp\n"
        f"for where in (None, {PLAIN!r}):\n"
        "    for options in ({}, {'footers': False}, {'cache': False}):\n"
        f"        fp.plan_scan({table.metadata_location!r}, where, options=fp.ScanOptions(**options))"
    )
    libraries, modules = imported(code)
    assert libraries == PLANNING
    assert modules < 580


def test_a_first_read_imports_what_reading_takes(imported: Any, table: Table) -> None:
    """Neither the parser, nor what PyIceberg's FileIO imports, nor pandas, for which pyarrow looks in ``pa.array``."""
    plan = f"import floeplan as fp; plan = fp.plan_scan({table.metadata_location!r}, {PLAIN!r}); "
    assert imported(f"{plan} plan.to_arrow()")[0] == PLANNING | {"pyarrow.compute"}
    assert imported(f"{plan} plan.count()")[0] == PLANNING | {"pyarrow.compute"}


@pytest.mark.parametrize(
    "where",
    [
        "region IN ('eu', 'us') AND v > 3",
        "ts IN (TIMESTAMP '2024-03-05', TIMESTAMP '2024-03-06')",
        "_pos < 7 AND region = 'eu'",
    ],
)
@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_a_first_read_does_not_import_pandas(codec: str, where: str, imported: Any, tmp_path: Path) -> None:
    """Whichever decoder reads the pages: the compiled one does not know Snappy. Some rows are deleted by position."""
    table = two_spec_table(tmp_path, properties={"write.parquet.compression-codec": codec})
    fp.delete(table, "id % 7 = 1", mode="merge-on-read")
    plan = f"import floeplan as fp; plan = fp.plan_scan({table.refresh().metadata_location!r}, {where!r}); "
    for read in ("plan.to_arrow()", "next(plan.to_arrow_batch_reader())", "plan.count()"):
        assert "pandas" not in imported(plan + read)[0], read


@pytest.mark.parametrize("enabled", [True, False])
def test_imports_are_not_searched_for_garbage(imported: Any, enabled: bool) -> None:
    """And the garbage collector is afterwards as it was before."""
    code = (
        "import gc, floeplan as fp\n"
        f"found = []; (gc.enable if {enabled} else gc.disable)()\n"
        "gc.callbacks.append(lambda phase, info: found.append(phase)); fp.plan_scan; gc.callbacks.clear()\n"
        f"assert gc.isenabled() == {enabled}; assert len(found) < 10, len(found)"
    )
    imported(code)


def test_the_first_collection_does_not_visit_what_was_imported(imported: Any) -> None:
    """It took longer than the first plan. Young objects of the caller stay young when nothing is imported."""
    young = "len(gc.get_objects(generation=0))"
    code = (
        "import gc, floeplan as fp; gc.set_threshold(0)\n"  # no collection, which would make objects old too
        f"fp.plan_scan; assert {young} < 1000, {young}\n"
        f"mine = [[] for _ in range(5000)]; fp.plan_scan; assert {young} >= 5000, {young}"
    )
    imported(code)


def test_what_the_caller_froze_stays_frozen(imported: Any) -> None:
    code = "import gc, floeplan as fp; gc.freeze(); before = gc.get_freeze_count(); fp.plan_scan\n"
    imported(code + "assert before <= gc.get_freeze_count() + 100 and before > 1000, (before, gc.get_freeze_count())")


def test_pandas_is_hidden_from_pyarrow_only_once(imported: Any) -> None:
    """Spark, and whoever asks pyarrow for pandas objects, still finds it."""
    code = (
        "from floeplan.cli import main; main._hide_pandas()\n"
        "import pyarrow as pa; assert not pa.array([1]) is None\n"
        "import sys; assert 'pandas' not in sys.modules\n"
        "frame = pa.table({'a': [1]}).to_pandas(); assert pa.table(frame).num_rows == 1\n"
    )
    assert "pandas" in imported(code)[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_summaries_begin_the_docstrings(name: str) -> None:
    module = import_module(f"floeplan.cli.{COMMANDS[name][0]}")
    text = " ".join(inspect.getdoc(getattr(module, name.replace("-", "_"))).split("\n\n")[0].split())
    assert text.split(". ")[0].rstrip(".") == COMMANDS[name][1].rstrip(".")


def test_what_help_repeats_of_the_library() -> None:
    assert strategy_names() == rewrite.STRATEGIES
    assert candidates.KINDS == audit.KINDS
    assert advisor.SAMPLED_ROWS == audit.SAMPLED_ROWS
    assert tuple(demo_archive.SIZES) == demo_command.SIZES
    assert doctor.SAMPLED_FILES == maintenance.SAMPLED_FILES
    assert parse_age(maintenance.AGE_GUARD, "--older-than") == orphans.AGE_GUARD
    assert list(map(str, doctor.Severity)) == list(maintenance._STYLES)
    assert inspect.signature(rewrite.upgrade_spec).parameters["to"].default == upgrade.CURRENT


def test_help_fits_80_columns_also_in_a_pipe() -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    every = "from floeplan.cli import main\nfor command in ([], ['scan'], ['merge']): main.main([*command, '-h'])"
    done = subprocess.run([sys.executable, "-c", every], capture_output=True, text=True, check=True, env=environment)
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
