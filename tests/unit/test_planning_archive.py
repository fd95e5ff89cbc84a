"""Planning the evolved archive: the same files as PyIceberg, and no deleted files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from floeplan.scan import plan as planning
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.tables.archive import write_evolved_archive

pytestmark = pytest.mark.unit

QUIET = ScanOptions(footers=False, cache=False, report=False)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_evolved_archive(tmp_path_factory.mktemp("archive") / "events", manifests=12, entries=50)


@pytest.mark.parametrize("where", [None, "amount < 400", "region = 'eu'", "ts < TIMESTAMP '2022-01-01 00:00:00+00:00'"])
def test_kept_files_are_pyicebergs(archive: Path, where: str | None) -> None:
    table = StaticTable.from_metadata(str(archive))
    theirs = table.scan(row_filter=where.replace("TIMESTAMP ", "").replace(" 00:", "T00:")) if where else table.scan()
    expected = {task.file.file_path for task in theirs.plan_files()}
    plan = plan_scan(table, where, options=QUIET)
    assert {file.path for file in plan.files} == expected


def test_deleted_files_are_neither_kept_nor_counted(archive: Path) -> None:
    everything = plan_scan(str(archive), options=QUIET)
    assert len(everything.files) == 597
    assert everything.passes[1].total == 597
    nothing = plan_scan(str(archive), "amount > 5000", options=QUIET)
    assert [effect.dropped for effect in nothing.passes[1].effects] == [597]


@pytest.mark.parametrize("where", ["amount < 400", "region = 'eu' AND amount != 3", "amount > 5000"])
def test_manifests_evaluated_in_slices_make_the_same_plan(
    archive: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One manifest per slice, or all of them in one."""
    at_once = plan_scan(str(archive), where, options=QUIET)
    monkeypatch.setattr(planning, "_SLICE_BYTES", 1)
    in_turns = plan_scan(str(archive), where, options=QUIET)
    assert in_turns.files.entries.table.equals(at_once.files.entries.table)
    assert [file.to_dict() for file in in_turns.files] == [file.to_dict() for file in at_once.files]
    assert [(p.kept, p.total, p.proven, p.effects) for p in in_turns.passes] == [
        (p.kept, p.total, p.proven, p.effects) for p in at_once.passes
    ]
