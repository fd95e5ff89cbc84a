"""Iceberg's REST compatibility kit against the server, in both modes.

The kit has no tests of planning, but every ``planFiles`` in it goes through the server in mode ``server``.
"""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.fetch_rest_catalog import ensure_rest_tck
from tests.support.rest_server import program
from tests.support.servers import rest_catalog
from tests.support.spark.lake import QUICK_JVM

pytestmark = [pytest.mark.services, pytest.mark.matrix]

TABLES = "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"
VIEWS = "org.apache.iceberg.rest.RESTCompatibilityKitViewCatalogTests"
WITHOUT_SCAN_REPORTS = {"testCatalogWithCustomMetricsReporter"}
"""Clients of server-side planning send no scan reports; the kit's own server fails this test too."""
BEYOND_PYICEBERG = {
    "createTableTransaction(int)[3]",  # PyIceberg 0.12 cannot create a table of format 3 in a transaction
    "testCreateTableWithDefaultColumnValue",  # it loses default values, so they are refused
    "testConcurrentReplaceTransactionSortOrderConflict",  # it does not give a sort order another id
    "testLoadTableWithMissingMetadataFile(Path)",  # the exception is right, its words are not those of Java's FileIO
}
"""Tests that catalog mode fails with an error of its own: what PyIceberg cannot commit is refused."""
PLANNING = "org.apache.iceberg.rest.ServedScanPlanning"
SOURCE = Path(__file__).parents[1] / "support" / "java" / "ServedScanPlanning.java"
ASK_THEIR_OWN_SERVER = {
    "scanPlanningWithMinRowsRequested(Function)[1]",
    "scanPlanningWithMinRowsRequested(Function)[2]",
    "selectWithNestedFieldsSendsFullyQualifiedNames",
    "useSnapshotSchemaSetCorrectlyForSnapshotAndBranchAndTag",
}
"""Tests that look at what their own server received, which received nothing."""
OF_PYICEBERG = {"rck.requires-namespace-create": "true", "rck.supports-names-with-dot": "false"}
"""What PyIceberg's SQL catalog requires and lacks, as the kit calls it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The tests of a run by name."""

    passed: frozenset[str]
    failed: frozenset[str]
    aborted: frozenset[str]


def run_kit(folder: Path, uri: str, *classes: str, properties: Mapping[str, str] | None = None) -> Outcome:
    """Run test classes of the kit, or classes compiled into ``folder``, against a catalog."""
    given = {"uri": uri, "warehouse": (folder / "kit").as_uri(), **(properties or {})}
    classpath = f"{ensure_rest_tck()}/*:{folder}"
    command = ["java", *QUICK_JVM.split(), "-cp", classpath, *(f"-D{k}={v}" for k, v in given.items())]
    kit = ["org.junit.platform.console.ConsoleLauncher", "execute", "--config=rck.local=false", "--details=none"]
    chosen = [part for name in classes for part in ("--select-class", name)]
    reports = folder / "reports"
    done = subprocess.run(
        [*command, *kit, *chosen, "--reports-dir", str(reports)], capture_output=True, text=True, cwd=folder
    )
    found: dict[str, set[str]] = {"passed": set(), "failed": set(), "aborted": set()}
    for path in reports.glob("TEST-*.xml"):
        for case in ET.parse(path).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            kind = "failed" if kinds & {"failure", "error"} else "aborted" if "skipped" in kinds else "passed"
            found[kind].add(str(case.get("name")).removesuffix("()"))
    assert found["passed"], done.stdout[-4000:] + done.stderr[-4000:]
    return Outcome(*(frozenset(found[kind]) for kind in ("passed", "failed", "aborted")))


@pytest.mark.parametrize(("mode", "failing"), [("client", set()), ("server", WITHOUT_SCAN_REPORTS)])
def test_the_kit_passes_through_the_proxy(mode: str, failing: set[str], tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    plan = ("--plan", "*", "--plan-format-3", "*", "--replace-upstream-planning") if mode == "server" else ()
    with (
        rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri(), {}) as behind,
        program(tmp_path / "server", "--upstream", behind, *plan) as served,
    ):
        outcome = run_kit(tmp_path, served.uri, TABLES, VIEWS)
        plans = len(served.events("plan"))
    assert outcome.failed == failing
    assert len(outcome.passed) >= 130
    assert (plans > 0) == (mode == "server")


def test_the_kit_passes_what_catalog_mode_advertises(tmp_path: Path) -> None:
    with program(tmp_path / "server", "--plan", "*", environment={"FLOEPLAN_HOME": str(tmp_path / "home")}) as served:
        outcome = run_kit(tmp_path, served.uri, TABLES, properties=OF_PYICEBERG)
    assert outcome.failed == WITHOUT_SCAN_REPORTS | BEYOND_PYICEBERG
    assert len(outcome.passed) >= 88


def test_icebergs_tests_of_scan_planning_pass_on_the_server(tmp_path: Path) -> None:
    """Its tests of tables; most of the others configure a server of their own and would pass without ours."""
    (tmp_path / "warehouse").mkdir()
    jars = sorted(map(str, ensure_rest_tck().glob("*.jar")))
    compiler = next(jar for jar in jars if "ecj-" in jar)
    options = ["-17", "-nowarn", "-cp", ":".join(jars), "-d", str(tmp_path)]
    subprocess.run(["java", "-jar", compiler, *options, str(SOURCE)], check=True)
    with (
        rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri(), {}) as behind,
        program(tmp_path / "server", "--upstream", behind, "--plan", "*", "--replace-upstream-planning") as served,
    ):
        outcome = run_kit(tmp_path, "", PLANNING, properties={"served.uri": served.uri})
        plans = len(served.events("plan"))
    assert outcome.failed == ASK_THEIR_OWN_SERVER
    assert len(outcome.passed) >= 60
    assert plans >= 30
