"""Tasks in batches: balanced, in order, with their own tokens and errors; jobs with isolated outcomes."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from floeplan.errors import BadInputError, FloeplanError
from floeplan.tasks.runner import (
    LOCAL_BYTES,
    TASK_BYTES,
    TaskOutcome,
    load_results,
    result_batch,
    run_jobs,
    run_tasks,
    spark_task,
)

pytestmark = pytest.mark.unit


def echo(pack: Sequence[int], attempt: str) -> tuple[list[int], str]:
    return list(pack), attempt


def test_no_work_runs_nothing() -> None:
    assert run_tasks(echo, []) == []


def test_every_descriptor_is_done_once_and_packs_keep_its_order() -> None:
    results = run_tasks(echo, range(100), weights=[TASK_BYTES] * 100)
    assert sorted(number for pack, _ in results for number in pack) == list(range(100))
    assert all(pack == sorted(pack) for pack, _ in results)


def test_little_work_is_one_pack() -> None:
    assert len(run_tasks(echo, range(100), weights=[10] * 100)) == 1


def test_little_work_leaves_the_session_alone() -> None:
    untouchable: Any = object()
    assert [pack for pack, _ in run_tasks(echo, [1, 2], untouchable, weights=[10, 20])] == [[1, 2]]
    with pytest.raises(AttributeError):
        run_tasks(echo, [1, 2], untouchable, weights=[LOCAL_BYTES, 1])


def test_packs_are_balanced_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floeplan.tasks.runner.os.cpu_count", lambda: 2)
    heavy, light = 10 * TASK_BYTES, TASK_BYTES
    results = run_tasks(echo, range(11), weights=[heavy, *[light] * 10])
    assert sorted(len(pack) for pack, _ in results) == [1, 10]


def test_attempts_have_tokens_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floeplan.tasks.runner.os.cpu_count", lambda: 4)
    results = run_tasks(echo, range(8), weights=[TASK_BYTES] * 8)
    assert len({attempt for _, attempt in results}) == len(results) == 4


def test_a_failed_task_raises_its_error_and_the_others_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floeplan.tasks.runner.os.cpu_count", lambda: 3)
    together = threading.Barrier(3, timeout=30)

    def task(pack: Sequence[int], attempt: str) -> list[int]:
        together.wait()
        if 1 in pack:
            raise BadInputError("one is not wanted")
        return list(pack)

    dropped: list[list[int]] = []
    with pytest.raises(BadInputError, match="one is not wanted"):
        run_tasks(task, range(3), weights=[TASK_BYTES] * 3, discard=dropped.append)
    assert sorted(dropped) == [[0], [2]]


def refuse(pack: Sequence[int], attempt: str) -> None:
    raise BadInputError("no such column", kind="unknown-column", context={"column": "x"}) from ValueError("inner")


def test_errors_of_spark_tasks_keep_their_type_and_context() -> None:
    batches = [pa.record_batch([pa.array([0], pa.int64())], names=["id"])]
    answers = pa.Table.from_batches(list(spark_task(refuse, [[1]])(batches)))
    with pytest.raises(BadInputError, match="no such column") as caught:
        load_results(answers, None)
    assert caught.value.kind == "unknown-column"
    assert caught.value.context == {"column": "x"}


def test_results_of_spark_tasks_are_unpickled_and_discarded_when_another_failed() -> None:
    good = result_batch(0, partial(str, "done"))
    assert load_results(pa.Table.from_batches([good]), None) == ["done"]
    bad = result_batch(1, partial(refuse, [], ""))
    dropped: list[str] = []
    with pytest.raises(BadInputError):
        load_results(pa.Table.from_batches([good, bad]), dropped.append)
    assert dropped == ["done"]


def test_other_errors_fail_the_job_so_that_spark_tries_again() -> None:
    with pytest.raises(ZeroDivisionError):
        result_batch(0, lambda: 1 / 0)


def test_tasks_pickle() -> None:
    assert pickle.loads(pickle.dumps(echo))([1], "a") == ([1], "a")


def jobs_of(
    jobs: Sequence[Sequence[int]], discarded: list[int], spark: Any = None, weight: int = 1
) -> Generator[list[tuple[int, TaskOutcome[int]]]]:
    def task(number: int, attempt: str) -> int:
        if number == 1:
            raise BadInputError("one is not wanted") from ValueError("inner")
        return 10 // (number - 2)

    return run_jobs(
        task,
        jobs,
        spark,
        weight=lambda _: weight,
        describe=str,
        concurrent_jobs=2,
        discard=discarded.append,
        error_kind="failed-here",
    )


def test_a_descriptor_that_fails_does_not_fail_the_others() -> None:
    discarded: list[int] = []
    first, second = list(jobs_of([[0, 1, 2], [3, 4]], discarded))
    assert [(number, outcome.result) for number, outcome in first] == [(0, -5), (1, None), (2, None)]
    assert [(number, outcome.result) for number, outcome in second] == [(3, 10), (4, 5)]
    refused, unforeseen = (outcome.error for _, outcome in first[1:])
    assert isinstance(refused, BadInputError)
    assert refused.__cause__ is None
    assert isinstance(unforeseen, FloeplanError)
    assert (unforeseen.kind, unforeseen.safe_to_clean) == ("failed-here", True)
    assert discarded == []


def test_results_that_were_not_delivered_are_discarded() -> None:
    discarded: list[int] = []
    running = jobs_of([[number] for number in range(3, 200)], discarded)
    ((_, outcome),) = next(running)  # of any job that has ended, not always of the first
    running.close()
    # Results from before the caller stopped are discarded; tasks that had not started do not run.
    finished = range(3, 4 + len(discarded))
    assert sorted([*discarded, outcome.result]) == sorted(10 // (number - 2) for number in finished)


def test_a_job_that_fails_as_a_whole_fails_its_descriptors_only() -> None:
    without_tags: Any = object()
    outcomes = [pair for job in jobs_of([[3], [4, 5]], [], without_tags) for pair in job]
    assert sorted(number for number, _ in outcomes) == [3, 4, 5]
    assert {type(outcome.error) for _, outcome in outcomes} == {FloeplanError}
