"""Shared by all tests: hypothesis profiles, the rule against silent skips, and a catalog for Spark and PyIceberg."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from sqlalchemy import Engine, event

from tests.support.fuzz import fuzzing

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

    from tests.support.spark.lake import Lake
    from tests.support.spark.matrix import Matrix

settings.register_profile(
    "default", max_examples=20, derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("default"), max_examples=60, derandomize=True, print_blob=True)
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
settings.load_profile("ci" if IN_CI and not fuzzing.SECONDS else "default")

pytest_plugins = ["pytester"]
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its workers; commands would draw narrower tables there


@event.listens_for(Engine, "connect")
def _do_not_sync(connection: object, _: object) -> None:
    """Turn off fsync in SQLite catalogs: it takes a fifth of the time of a unit test."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
KINDS = ("unit", "property", "spark", "engines", "services", "load")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Require one of the markers that name what a test needs."""
    unmarked = sorted({item.location[0] for item in items if not any(map(item.get_closest_marker, KINDS))})
    if unmarked:
        raise pytest.UsageError(f"set pytestmark to one of {', '.join(KINDS)} in {', '.join(unmarked)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _skip_is_failure((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _skip_is_failure((yield))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """With ``make fuzz``, repeat a property test for its number of seconds; pytest's own call is the last."""
    if fuzzing.SECONDS and is_hypothesis_test(pyfuncitem.obj):
        fuzzing.look_for_more(pyfuncitem)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if fuzzing.SECONDS:
        terminalreporter.section("fuzzing")
        terminalreporter.write_line(fuzzing.account(terminalreporter.stats.get("passed", [])))


def _skip_is_failure(report: Report) -> Report:
    """With CI=true a missing component is a failure, never a silent skip."""
    if IN_CI and report.outcome == "skipped":
        report.outcome = "failed"
        vars(report).pop("wasxfail", None)
        report.longrepr = f"skipped or expected to fail, which CI does not allow: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_litter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write scan reports and cached manifests of the tests to a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOEPLAN_REPORTS", str(tmp_path_factory.mktemp("reports")))
        patch.setenv("FLOEPLAN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One SQLite catalog named `local` and one warehouse, shared by Spark and PyIceberg."""
    from tests.support.spark.lake import Lake

    return Lake(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="session")
def spark(lake: Lake) -> Iterator[SparkSession]:
    """A local Spark with Iceberg's own jar; tables are `local.<namespace>.<name>`."""
    session = lake.start_spark()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def local_catalog(lake: Lake) -> Iterator[SqlCatalog]:
    """The catalog `local` opened by PyIceberg."""
    catalog = lake.open_catalog()
    yield catalog
    catalog.close()


@pytest.fixture(scope="session")
def matrix(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """The evolved tables of the tests, each built by Spark when a test first needs it."""
    from tests.support.spark.matrix import Matrix

    own = tmp_path_factory.getbasetemp()
    run = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "matrix"
    run.mkdir(exist_ok=True)
    return Matrix(spark, run)


@pytest.fixture
def floeplan_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home for the embedded catalog; ignores the PyIceberg configuration of the machine."""
    for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path / "floeplan"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "floeplan"
