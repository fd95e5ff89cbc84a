"""The pruning pyramid on the archive of many missions: a week of one mission, and its high voltages."""

from __future__ import annotations

from pathlib import Path

import pytest

from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.tables.archive import write_artemis_archive

pytestmark = pytest.mark.unit

WEEK = (
    "mission_id = 'apollo-7' AND sample_timestamp_ns >= TIMESTAMP_NTZ '2022-01-05' "
    "AND sample_timestamp_ns < TIMESTAMP_NTZ '2022-01-12'"
)
HIGH = f"{WEEK} AND panel_voltage > 28.5"
QUIET = ScanOptions(footers=False, report=False)


def test_week_of_one_mission_is_in_ten_manifests_and_fifty_files(tmp_path: Path) -> None:
    """The missions and files per day of the full archive over a tenth of its days: 400 of 4,000 manifests."""
    archive = write_artemis_archive(tmp_path / "artemis", days=100)
    summary = plan_scan(str(archive), WEEK, options=QUIET).summary
    assert summary.manifests_total == 400
    assert 7 <= summary.manifests_kept <= 10
    assert summary.files_total == 40 * (100 * 6 + 99)
    assert 45 <= summary.files_kept <= 55


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("archive") / "artemis"
    return str(write_artemis_archive(root, missions=7, days=14, missions_per_commit=7, real_files=True))


def test_high_voltages_are_in_eighty_row_groups(real: str) -> None:
    plan = plan_scan(real, HIGH, options=ScanOptions(report=False))
    summary = plan.summary
    assert summary.manifests_kept == 8
    assert 40 <= summary.files_kept <= 55
    assert summary.row_groups_total is not None
    assert summary.row_groups_kept is not None
    assert summary.row_groups_total == 8 * plan.passes[1].kept
    assert 60 <= summary.row_groups_kept <= 100
    assert summary.rows_kept == 10 * summary.row_groups_kept


def test_rows_of_the_archive_are_those_of_a_full_read(real: str) -> None:
    everything = plan_scan(real, WEEK).to_arrow(["panel_voltage"]).column(0).to_pylist()
    expected = [voltage for voltage in everything if voltage > 28.5]
    plan = plan_scan(real, HIGH)
    assert plan.count() == len(expected) > 0
    assert plan.to_arrow(["panel_voltage"]).column(0).to_pylist() == expected
