"""Remapping of deleted positions from old files to new ones, for every row."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from floeplan.rewrite.run.group import PositionMap, PositionMapBuilder, runs_of

pytestmark = pytest.mark.unit


def many_runs(runs: int, rows: int) -> PositionMap:
    """Two old files of equal length, split into runs by deleted rows, with the runs shuffled over three new files."""
    rng = np.random.default_rng(11)
    size = rows // runs
    builder = PositionMapBuilder(["a", "b"])
    numbers = [
        np.array(builder.add_read(source, np.arange(runs // 2) * size, np.full(runs // 2, size - 1))).reshape(
            -1, size - 1
        )
        for source in (0, 1)
    ]
    shuffled = np.concatenate(numbers)[rng.permutation(runs // 2 * 2)].ravel()
    third = len(shuffled) // 3
    builder.add_written(["x", "y", "z"], [third, third, len(shuffled) - 2 * third], [runs_of(shuffled)])
    return builder.finish()


def test_a_pickled_map_is_equal_and_small() -> None:
    moved = many_runs(2000, 20_000)
    sent = pickle.dumps(moved)
    assert len(sent) < moved.count.nbytes
    received = pickle.loads(sent)
    for path in ("a", "b"):
        ours, theirs = moved.remap(path, np.arange(10_000)), received.remap(path, np.arange(10_000))
        assert {target: places.tolist() for target, places in ours.items()} == {
            target: places.tolist() for target, places in theirs.items()
        }


@pytest.mark.parametrize(("length", "most"), [(1, 4), (2, 2.5), (100, 0.06)])
def test_the_map_is_never_larger_than_the_row_numbers(length: int, most: float) -> None:
    """Bytes per row for 100,000 rows in shuffled runs of some length."""
    runs = np.random.default_rng(5).permutation(100_000 // length)
    numbers = (runs[:, None] * length + np.arange(length)).ravel()
    starts, counts = runs_of(numbers)
    owned = sum(part.nbytes for part in (starts, counts) if part.strides != (0,))
    assert owned <= most * len(numbers)
    assert int(counts.sum()) == len(numbers)
    assert np.array_equal(np.repeat(starts, counts), np.repeat(numbers[:: len(numbers) // len(starts)], counts))


def test_every_row_is_found_and_deleted_ones_are_not() -> None:
    moved = many_runs(20, 2000)
    seen = []
    for path in ("a", "b"):
        live = [p for p in range(1000) if p % 100 != 99]
        found = moved.remap(path, live)
        assert sum(map(len, found.values())) == len(live)
        seen += [(target, p) for target, positions in found.items() for p in positions.tolist()]
        assert moved.remap(path, [99, 199, 999]) == {}
    assert len(seen) == len(set(seen)) == 20 * 99
    assert {target for target, _ in seen} == {"x", "y", "z"}


def test_a_million_deletes_over_ten_thousand_runs() -> None:
    moved = many_runs(10_000, 20_000_000)
    positions = np.sort(np.random.default_rng(3).choice(10_000_000, 500_000, replace=False))
    found = [moved.remap(path, positions) for path in ("a", "b")]
    gone = np.count_nonzero(positions % 2000 == 1999)
    assert sum(len(part) for one in found for part in one.values()) == 1_000_000 - 2 * gone
