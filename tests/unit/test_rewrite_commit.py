"""Local rewrites: rows and sequence numbers are kept, concurrent deletes are remapped, failures stay local."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitConflictError, CommitError, FloeplanError
from floeplan.metadata.files import local_path
from floeplan.rewrite.plan.model import RewriteInterruptedError, RewriteResult
from floeplan.rewrite.progress import Progress
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.tables.two_specs import EVENTS, catalog, events, two_spec_table

pytestmark = pytest.mark.unit

ALL = {"rewrite-all": "true"}


def six_files(folder: Path, **properties: str) -> Table:
    """Ids 0–599 in six files of one partition."""
    table = created(folder, properties)
    for first in range(0, 600, 100):
        fp.append(table, events(first, first + 100))
    return table


def in_regions(folder: Path, **properties: str) -> Table:
    """Ids 0–299 in two files of each of three regions."""
    table = created(folder, properties)
    with table.update_spec() as update:
        update.add_identity("region")
    fp.append(table, events(0, 150))
    fp.append(table, events(150, 300))
    return table


def created(folder: Path, properties: dict[str, str]) -> Table:
    opened = catalog(folder)
    with writable_metadata(opened._load_file_io(location=folder.as_uri())):
        return opened.create_table("db.t", EVENTS, properties={"format-version": "2", **properties})


def rows(table: Table) -> pa.Table:
    return fp.plan_scan(table.refresh()).to_arrow().sort_by("id")


def ids(table: Table) -> set[int]:
    return set(rows(table)["id"].to_pylist())


def data_files(folder: Path) -> set[Path]:
    return set(folder.rglob("*.parquet")) | set(folder.rglob("*.puffin"))


def live_files(table: Table) -> set[Path]:
    files = fp.plan_scan(table.refresh()).files
    listed = [file.path for file in files] + [delete.path for file in files for delete in file.deletes]
    return {local(path) for path in listed}


def local(path: str) -> Path:
    found = local_path(path)
    assert found is not None
    return Path(found)


def rewrite(table: Table, **arguments: Any) -> RewriteResult:
    return fp.rewrite_data_files(table, **arguments)


def at_step(step: str, do: Callable[[], object], times: int = 1) -> CommitOptions:
    """Run ``do`` when a commit reaches a step, at most ``times`` times."""
    left = [times]

    def on_step(name: str) -> None:
        if name == step and left[0]:
            left[0] -= 1
            do()

    return CommitOptions(on_step=on_step)


def test_small_files_become_one_and_a_second_run_does_nothing(tmp_path: Path) -> None:
    table = six_files(tmp_path)
    before, start = rows(table), table.current_snapshot()
    assert start is not None
    result = rewrite(table)
    assert rows(table).equals(before)
    assert table.scan().to_arrow().sort_by("id").cast(before.schema).equals(before)
    assert (result.files_rewritten, result.files_added, result.groups_failed) == (6, 1, 0)
    assert result.bytes_rewritten > result.bytes_added > 0
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert result.snapshot_ids == (snapshot.snapshot_id,)
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    (file,) = fp.plan_scan(table).files
    assert file.sequence_number == start.sequence_number
    assert fp.plan_scan(table, snapshot_id=start.snapshot_id).to_arrow().sort_by("id").equals(before)
    again = rewrite(table)
    assert (again.snapshot_ids, again.files_rewritten) == ((), 0)
    assert table.current_snapshot() == snapshot


def test_files_can_take_the_sequence_number_of_the_commit(tmp_path: Path) -> None:
    table = six_files(tmp_path)
    rewrite(table, options={"use-starting-sequence-number": "false"})
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert fp.plan_scan(table).files[0].sequence_number == snapshot.sequence_number


@pytest.mark.parametrize("version", ["2", "3"])
def test_deletes_are_applied_and_leave_the_table(tmp_path: Path, version: str) -> None:
    table = six_files(tmp_path, **{"format-version": version, "write.delete.granularity": "partition"})
    fp.delete(table, "id % 7 = 0", mode="merge-on-read")
    before = rows(table)
    result = rewrite(table, options={"delete-file-threshold": "1"})
    assert rows(table).equals(before)
    assert result.delete_files_removed == (1 if version == "2" else 6)
    assert [file.deletes for file in fp.plan_scan(table).files] == [()]
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary["total-delete-files"] == "0"


def test_an_unreachable_catalog_at_the_commit_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = six_files(tmp_path)
    before = data_files(tmp_path)

    class Gone(Progress):
        def done(self, groups: int, size: int, failed: int) -> None:
            monkeypatch.setattr(type(table.catalog), "load_table", unreachable)

    def unreachable(*_: object) -> None:
        raise ConnectionError("no route to the catalog")

    with pytest.raises(CommitError, match="no route to the catalog"):
        rewrite(table, progress=Gone())
    assert data_files(tmp_path) == before


def test_a_delete_that_still_applies_stays(tmp_path: Path) -> None:
    table = six_files(tmp_path, **{"write.delete.granularity": "partition"})
    fp.delete(table, "id % 7 = 0", mode="merge-on-read")
    before = rows(table)
    result = rewrite(table, where="id < 250", options={**ALL, "remove-dangling-deletes": "true"})
    assert result.files_rewritten == 3
    assert result.delete_files_removed == 0
    assert rows(table).equals(before)


@pytest.mark.parametrize(
    ("version", "granularity", "strategy", "step"),
    [
        ("2", "file", "binpack", "refreshed"),
        ("2", "partition", "sort", "before-commit"),
        ("2", "partition", "stitch", "validated"),
        ("3", "file", "binpack", "before-commit"),
        ("3", "file", "sort", "manifests-written"),
        ("3", "file", "stitch", "refreshed"),
    ],
)
def test_concurrently_deleted_rows_stay_deleted(
    tmp_path: Path, version: str, granularity: str, strategy: str, step: str
) -> None:
    table = six_files(tmp_path, **{"format-version": version, "write.delete.granularity": granularity})
    fp.delete(table, "id % 10 = 3", mode="merge-on-read")
    other = table.catalog.load_table(table.name())
    commit = at_step(step, lambda: fp.delete(other, "id % 10 = 4 OR id BETWEEN 95 AND 105", mode="merge-on-read"))
    by = {"by": ["id desc"]} if strategy == "sort" else {}
    result = rewrite(table, strategy=strategy, options=ALL, commit=commit, **by)
    gone = {i for i in range(600) if i % 10 in (3, 4) or 95 <= i <= 105}
    assert ids(table) == set(range(600)) - gone
    assert result.files_rewritten == 6
    assert result.deletes_carried == len(gone) - 60
    assert set(table.scan().to_arrow()["id"].to_pylist()) == ids(table)
    assert live_files(table) <= data_files(tmp_path)


def test_a_concurrently_removed_file_fails_only_its_group(tmp_path: Path) -> None:
    table = in_regions(tmp_path)
    other = table.catalog.load_table(table.name())
    commit = at_step("before-commit", lambda: fp.delete(other, "region = 'eu' AND id < 100", mode="copy-on-write"))
    result = rewrite(table, options=ALL, commit=commit)
    assert ids(table) == {i for i in range(300) if i % 3 or i >= 100}
    assert result.groups_failed == 1
    assert result.files_rewritten == 4
    assert isinstance(result.failures[0].error, CommitConflictError)
    assert live_files(table) <= data_files(tmp_path)


def test_a_concurrent_append_is_no_conflict(tmp_path: Path) -> None:
    table = six_files(tmp_path)
    other = table.catalog.load_table(table.name())
    result = rewrite(table, commit=at_step("before-commit", lambda: other.append(events(600, 700))))
    assert ids(table) == set(range(700))
    assert (result.files_rewritten, result.groups_failed) == (6, 0)


def test_another_rewrite_of_the_same_files_wins_and_nothing_is_doubled(tmp_path: Path) -> None:
    table = six_files(tmp_path)
    other = table.catalog.load_table(table.name())
    with pytest.raises(CommitConflictError, match="another writer removed"):
        rewrite(table, commit=at_step("before-commit", lambda: rewrite(other)))
    assert rows(table).num_rows == 600
    assert len(fp.plan_scan(table).files) == 1
    assert len(data_files(tmp_path)) == 7, "files written by the losing rewrite are removed"


def test_partial_progress_commits_portions(tmp_path: Path) -> None:
    table = in_regions(tmp_path)
    before, snapshots = rows(table), len(table.snapshots())
    result = rewrite(table, options={**ALL, "partial-progress.enabled": "true", "partial-progress.max-commits": "2"})
    assert len(result.snapshot_ids) == 2
    assert len(table.snapshots()) == snapshots + 2
    assert result.files_rewritten == 6
    assert rows(table).equals(before)


def test_partial_progress_removes_deletes_with_the_last_group_they_apply_to(tmp_path: Path) -> None:
    table = six_files(tmp_path, **{"write.delete.granularity": "partition"})
    fp.delete(table, "id % 7 = 0", mode="merge-on-read")
    before = rows(table)
    result = rewrite(
        table,
        options={
            **ALL,
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": "3",
            "max-file-group-input-files": "2",
        },
    )
    assert len(result.snapshot_ids) == 3
    assert result.delete_files_removed == 1
    assert rows(table).equals(before)


def test_an_interrupted_run_is_resumed_by_the_next(tmp_path: Path) -> None:
    table = in_regions(tmp_path)
    options = {"min-input-files": "2", "partial-progress.enabled": "true", "partial-progress.max-commits": "3"}
    calls: list[str] = []

    def crash(step: str) -> None:
        calls.append(step)
        if calls.count("refreshed") == 2:
            raise MemoryError("simulated crash")

    before = rows(table)
    with pytest.raises(MemoryError):
        rewrite(table, options=options, commit=CommitOptions(on_step=crash))
    assert rows(table).equals(before)
    assert len(fp.plan_scan(table).files) == 5
    result = rewrite(table, options=options)
    assert result.files_rewritten == 4
    assert rows(table).equals(before)
    assert rewrite(table, options=options).snapshot_ids == ()


PORTIONS = {**ALL, "partial-progress.enabled": "true", "partial-progress.max-commits": "3"}


def interrupted_run(table: Table, commits: int, **arguments: Any) -> None:
    """A run that crashes after ``commits`` of three commits."""
    calls: list[str] = []

    def crash(step: str) -> None:
        calls.append(step)
        if calls.count("refreshed") > commits:
            raise MemoryError("simulated crash")

    with pytest.raises(MemoryError):
        rewrite(table, options=PORTIONS, commit=CommitOptions(on_step=crash), **arguments)


@pytest.mark.parametrize("commits", [1, 2])
def test_rewriting_everything_is_resumed_where_it_was_interrupted(tmp_path: Path, commits: int) -> None:
    table = in_regions(tmp_path)
    before, old = rows(table), live_files(table)
    interrupted_run(table, commits)
    made = live_files(table) - old
    assert len(made) == commits
    fp.append(table, events(300, 330))
    result = rewrite(table, options=ALL)
    assert result.planning.plan.skipped == {"already-rewritten": commits}
    assert result.files_rewritten == 2 * (3 - commits) + 3
    assert made < live_files(table), "rewritten files are not rewritten again"
    assert rows(table).slice(0, 300).equals(before)
    left = len(live_files(table))
    assert rewrite(table, options=ALL).files_rewritten == left, "a new run starts from scratch"


@pytest.mark.parametrize("arguments", [{"strategy": "sort", "by": ("id desc",)}, {"where": "id < 200"}])
def test_different_options_are_a_new_run(tmp_path: Path, arguments: dict[str, Any]) -> None:
    table = in_regions(tmp_path)
    interrupted_run(table, 1)
    assert "already-rewritten" not in rewrite(table, options=ALL, **arguments).planning.plan.skipped


def test_new_deletes_from_rewritten_files_are_a_reason_again(tmp_path: Path) -> None:
    table = in_regions(tmp_path)
    interrupted_run(table, 2)
    fp.delete(table, "id % 2 = 0", mode="merge-on-read")
    assert rewrite(table, options=ALL).planning.plan.skipped == {}
    assert not any(file.deletes for file in fp.plan_scan(table.refresh()).files)
    assert ids(table) == set(range(1, 300, 2))


def test_an_unreadable_group_fails_alone(tmp_path: Path) -> None:
    table = in_regions(tmp_path)
    (broken, *_) = [file.path for file in fp.plan_scan(table).files if file.partition == {"region": "us"}]
    whole = local(broken).read_bytes()
    local(broken).write_bytes(b"not a Parquet file, and too long to be taken for an empty one")
    result = rewrite(table, options=ALL)
    assert result.groups_failed == 1
    assert result.files_rewritten == 4
    assert result.to_dict()["failures"][0]["message"]
    local(broken).write_bytes(whole)
    assert ids(table) == set(range(300))


def test_when_all_groups_fail_the_error_is_raised_and_nothing_is_left(tmp_path: Path) -> None:
    table = six_files(tmp_path)
    for file in fp.plan_scan(table).files[:1]:
        local(file.path).unlink()
    before = data_files(tmp_path)
    with pytest.raises(FloeplanError):
        rewrite(table)
    assert data_files(tmp_path) == before


def test_an_interrupt_reports_what_was_committed_and_leaves_no_files(tmp_path: Path) -> None:
    table = in_regions(tmp_path)
    before = rows(table)

    class Interrupting(Progress):
        def committed(self, snapshot_id: int, groups: int) -> None:
            raise KeyboardInterrupt

    options = {**ALL, "partial-progress.enabled": "true", "partial-progress.max-commits": "3"}
    with pytest.raises(RewriteInterruptedError, match="2 files rewritten in 1 commit stay committed") as caught:
        rewrite(table, options=options, progress=Interrupting())
    assert caught.value.exit_code == 130
    assert caught.value.committed
    assert rows(table).equals(before)
    assert len(data_files(tmp_path)) == 7


@contextmanager
def on_interrupt(handler: Any) -> Iterator[None]:
    """Install a SIGINT handler: a test run in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("step", ["refreshed", "before-commit", "cleaned"])
def test_an_interrupt_during_the_commit_waits_for_it(tmp_path: Path, step: str) -> None:
    table = six_files(tmp_path)
    before = rows(table)
    commit = at_step(step, lambda: signal.raise_signal(signal.SIGINT))
    with (
        on_interrupt(signal.default_int_handler),
        pytest.raises(RewriteInterruptedError, match="6 files rewritten in 1 commit stay committed"),
    ):
        rewrite(table, commit=commit)
    assert len(fp.plan_scan(table.refresh()).files) == 1
    assert rows(table).equals(before)


def test_an_ignored_interrupt_stays_ignored_during_the_commit(tmp_path: Path) -> None:
    table = six_files(tmp_path)
    commit = at_step("before-commit", lambda: signal.raise_signal(signal.SIGINT))
    with on_interrupt(signal.SIG_IGN):
        assert rewrite(table, commit=commit).files_rewritten == 6


def test_a_branch_is_rewritten_and_main_stays(tmp_path: Path) -> None:
    table = six_files(tmp_path)
    start = table.current_snapshot()
    assert start is not None
    table.manage_snapshots().create_branch(start.snapshot_id, "side").commit()
    fp.append(table, events(600, 700), branch="side")
    result = rewrite(table, branch="side")
    assert result.files_rewritten == 7
    assert ids(table) == set(range(600))
    assert len(fp.plan_scan(table).files) == 6
    side = fp.plan_scan(table, ref="side")
    assert len(side.files) == 1
    assert set(side.to_arrow()["id"].to_pylist()) == set(range(700))


@pytest.mark.parametrize("spec", [0, 1, "current"])
def test_files_move_to_the_requested_spec(tmp_path: Path, spec: int | str) -> None:
    table = two_spec_table(tmp_path)
    before = rows(table)
    result = rewrite(table, spec=spec, options=ALL)
    wanted = 1 if spec == "current" else spec
    assert {file.spec_id for file in fp.plan_scan(table).files} == {wanted}
    assert result.groups_failed == 0
    assert rows(table).equals(before)
