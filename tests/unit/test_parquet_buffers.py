"""The pool of memory for decoded columns: what is used again, what is given back, and how much it holds."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.read.buffers import BufferPool, pool
from floeplan.parquet.read.decoder import decode_row_groups
from floeplan.parquet.source import open_source

pytestmark = pytest.mark.unit

MIB = 1 << 20
ROWS = 50_000


@pytest.fixture
def emptied() -> Iterator[BufferPool]:
    """A pool of this process that nothing has used."""
    pool.cache_clear()
    yield pool()
    pool.cache_clear()


def waited(held: BufferPool, expected: tuple[int, int]) -> bool:
    ends = time.monotonic() + 30
    while held.sizes() != expected and time.monotonic() < ends:
        time.sleep(0.01)
    return held.sizes() == expected


def file(path: Path, seed: int, rows: int = ROWS) -> tuple[str, pa.Table]:
    numbers = np.random.default_rng(seed).integers(0, 2**40, rows)
    few = pa.array([f"k{number % 9}" for number in numbers])
    table = pa.table({"id": numbers, "few": few, "note": [f"note {number}" for number in numbers]})
    pq.write_table(table, path, compression="zstd", use_dictionary=["few"])
    return str(path), table


def rows_of(path: str) -> pa.Table:
    source = open_source(path)
    return decode_row_groups(source, read_footer(source), [0, 1, 2], np.array([0]))


def same(found: pa.Table, expected: pa.Table) -> bool:
    return bool(found.cast(expected.schema).equals(expected))


def test_memory_is_used_again_once_its_last_buffer_is_gone() -> None:
    held = BufferPool()
    room = held.room(MIB)
    assert room is not None
    first, second = room.buffer(0, 10), room.buffer(64, 10)
    del room, first
    assert held.sizes() == (MIB, 0)
    address = second.address
    del second
    assert held.sizes() == (0, MIB)
    again = held.room(MIB - 5)
    assert again is not None
    assert again.buffer(64, 10).address == address
    assert held.sizes() == (MIB, 0)


def test_the_pool_never_holds_more_than_its_limit() -> None:
    held = BufferPool(most=3 * MIB)
    rooms = [held.room(MIB) for _ in range(4)]
    assert [room is None for room in rooms] == [False, False, False, True]
    rooms.clear()
    larger = held.room(2 * MIB)
    assert larger is not None
    assert held.sizes() == (2 * MIB, MIB)


def test_the_pool_keeps_no_more_than_was_in_use_at_once() -> None:
    held = BufferPool(spare=0)
    for size in range(1, 9):
        room = held.room(size * MIB)
        assert room is not None
        del room
    assert held.sizes() == (0, 8 * MIB)


def test_idle_memory_returns_to_the_system_and_the_pool_can_be_used_again() -> None:
    held = BufferPool(idle=0.05)
    used, unused = held.room(MIB), held.room(2 * MIB)
    assert used is not None
    del unused
    assert waited(held, (MIB, 0))
    del used
    assert waited(held, (0, 0))
    assert held.room(MIB) is not None


def test_sizes_are_whole_pages_with_little_to_spare() -> None:
    held = BufferPool()
    for size in (1, mmap.PAGESIZE, 100_001, 5 * MIB + 1):
        room = held.room(size)
        assert room is not None
        assert size <= len(room.bytes) <= max(size * 17 / 16, size + mmap.PAGESIZE)
        assert len(room.bytes) % mmap.PAGESIZE == 0


def test_memory_that_the_system_refuses_comes_from_arrow() -> None:
    assert BufferPool(most=1 << 62).room(1 << 61) is None


def test_later_reads_use_the_memory_of_rows_that_are_gone_and_change_no_others(
    tmp_path: Path, emptied: BufferPool
) -> None:
    files = [file(tmp_path / f"{seed}.parquet", seed) for seed in range(4)]
    kept = [(rows_of(path), expected) for path, expected in files[:2]]
    used = emptied.sizes()[0]
    assert used > 2 * ROWS * 8
    for _ in range(3):
        for path, expected in files[2:]:
            assert same(rows_of(path), expected)
    assert emptied.sizes()[0] == used
    assert all(same(found, expected) for found, expected in kept)
    kept.clear()
    assert emptied.sizes()[0] == 0


def test_rows_beyond_the_limit_are_read_all_the_same(
    tmp_path: Path, emptied: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emptied, "_most", MIB // 2)
    path, expected = file(tmp_path / "0.parquet", 0)
    found = [rows_of(path) for _ in range(3)]
    assert all(same(one, expected) for one in found)
    assert 0 < sum(emptied.sizes()) <= MIB // 2


def test_a_forked_process_has_a_pool_of_its_own(tmp_path: Path, emptied: BufferPool) -> None:
    path, expected = file(tmp_path / "0.parquet", 0)
    kept = rows_of(path)
    child = os.fork()
    if not child:
        right = pool() is not emptied and same(kept, expected) and same(rows_of(path), expected)
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
