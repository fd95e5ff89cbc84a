"""Byte sources: few requests, exact counters, and errors for short responses."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from floeplan.errors import CorruptFileError, FloeplanError, UnknownFileError
from floeplan.parquet.source import (
    BaseSource,
    BytesSource,
    FileIOSource,
    IoCounters,
    LocalSource,
    _executor,
    coalesce,
    open_source,
)

pytestmark = pytest.mark.unit

DATA = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file name.bin").write_bytes(DATA)
    return tmp_path / "file name.bin"


def test_ranges_are_returned_in_the_requested_order() -> None:
    ranges = [(9000, 10), (0, 4), (9005, 50), (300, 0), (5000, 1), (0, 4)]
    assert [bytes(part) for part in BytesSource(DATA).read_ranges(ranges)] == [DATA[a : a + n] for a, n in ranges]


def test_adjacent_ranges_are_fetched_together_and_counted() -> None:
    source = BytesSource(DATA, gap=100)
    source.read_suffix(10)
    source.counters.requests = source.counters.bytes = source.counters.round_trips = 0
    source.read_ranges([(0, 10), (110, 10), (221, 10), (1000, 10)])
    assert source.counters == IoCounters(requests=3, bytes=120 + 10 + 10, round_trips=1)


def test_the_tail_is_fetched_once() -> None:
    source = BytesSource(DATA)
    assert bytes(source.read_suffix(100)) == DATA[-100:]
    assert bytes(source.read_suffix(40)) == DATA[-40:]
    assert source.size == len(DATA)
    assert [bytes(part) for part in source.read_ranges([(len(DATA) - 90, 20), (len(DATA), 0)])] == [DATA[-90:-70], b""]
    assert source.counters == IoCounters(requests=1, bytes=100, round_trips=1)
    crossing, before = source.read_ranges([(len(DATA) - 150, 120), (0, 4)])
    assert bytes(crossing) == DATA[-150:-30]
    assert bytes(before) == DATA[:4]
    assert source.counters.bytes == 100 + 50 + 4, "what is in the tail is not fetched again"


def test_a_file_shorter_than_its_tail() -> None:
    assert bytes(BytesSource(b"abc").read_suffix(100)) == b"abc"
    assert bytes(BytesSource(b"").read_suffix(100)) == b""


def test_many_requests_are_several_round_trips() -> None:
    source = BytesSource(bytes(10**6), gap=0)
    source.read_suffix(1)
    source.read_ranges([(i * 1000, 10) for i in range(130)])
    assert source.counters.round_trips == 1 + 3


@pytest.mark.parametrize("wrong", [(-1, 5), (5, -1), (len(DATA) - 1, 2), (2**62, 2**62), (0, len(DATA) + 1)])
def test_a_range_outside_the_file_is_the_fault_of_the_file(wrong: tuple[int, int]) -> None:
    source = BytesSource(DATA, "a.parquet")
    source.read_suffix(1)
    with pytest.raises(CorruptFileError, match=rf"a\.parquet.*\(offset {wrong[0]}\)"):
        source.read_ranges([(0, 4), wrong])
    assert source.counters.requests == 1


class ShortStore(BaseSource):
    """A store that truncates responses, except for a tail of one byte."""

    def _fetch_suffix(self, length: int) -> tuple[bytes, int]:
        return DATA[-length:][:5], len(DATA)

    def _fetch(self, offset: int, length: int) -> bytes:
        return DATA[offset : offset + length - 1]


def test_a_short_answer_is_a_retryable_error_and_never_data() -> None:
    with pytest.raises(FloeplanError, match="5 bytes instead of 8") as caught:
        ShortStore("far", gap=0).read_suffix(8)
    assert caught.value.retryable
    assert caught.value.kind == "short-read"
    known = ShortStore("far", gap=0)
    known.read_suffix(1)
    with pytest.raises(FloeplanError, match="9 bytes instead of 10"):
        known.read_ranges([(0, 10)])


def test_local_paths_and_uris(path: Path) -> None:
    for name in (path, str(path), path.as_uri(), f"file:{path}"):
        source = open_source(name)
        assert isinstance(source, LocalSource)
        assert bytes(source.read_suffix(7)) == DATA[-7:]
        assert bytes(source.read_ranges([(1, 3)])[0]) == DATA[1:4]
    assert bytes(open_source(DATA).read_suffix(3)) == DATA[-3:]
    assert open_source(source) is source


def test_a_local_location_is_taken_literally(tmp_path: Path) -> None:
    """Partition folders are escaped on disk, and locations contain the escaped names."""
    path = tmp_path / "region=n%2Fa#1?" / "a.parquet"
    path.parent.mkdir()
    path.write_bytes(DATA)
    for name in (f"file:{path}", f"file://{path}", str(path)):
        assert bytes(open_source(name).read_suffix(3)) == DATA[-3:]


def test_a_local_file_is_read_into_memory_of_the_caller(path: Path) -> None:
    source = LocalSource(path)
    memory = bytearray(10)
    source.read_into(memoryview(memory)[2:9], 3)
    assert memory == b"\0\0" + DATA[3:10] + b"\0"
    assert source.counters.bytes == 7
    with pytest.raises(FloeplanError, match="returned 4 bytes instead of 10") as caught:
        source.read_into(memoryview(memory), len(DATA) - 4)
    assert caught.value.kind == "short-read"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownFileError, match=r"nothing\.parquet: no such file"):
        open_source(tmp_path / "nothing.parquet")
    with pytest.raises(UnknownFileError, match=r"nothing\.parquet: no such file"):
        FileIOSource(str(tmp_path / "nothing.parquet"), PyArrowFileIO())


def test_what_the_system_refuses_is_one_error_with_the_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownFileError, match="is a folder, and a file is expected") as caught:
        open_source(tmp_path).read_suffix(8)
    assert not caught.value.retryable


def test_a_local_file_is_closed_with_its_source(path: Path) -> None:
    def opened() -> int:
        """How many descriptors of this process refer to the file; others come and go with its threads."""
        descriptors = Path("/proc/self/fd").iterdir()
        return sum(os.path.realpath(descriptor) == os.path.realpath(path) for descriptor in descriptors)

    source = open_source(path)
    source.read_suffix(5)
    assert opened() == 1
    del source
    assert opened() == 0


@pytest.mark.parametrize("io", [PyArrowFileIO(), FsspecFileIO({})], ids=["pyarrow", "fsspec"])
def test_locations_of_a_pyiceberg_file_io(path: Path, io: PyArrowFileIO | FsspecFileIO) -> None:
    source = FileIOSource(str(path), io, gap=0)
    assert source.size == len(DATA)
    assert bytes(source.read_suffix(9)) == DATA[-9:]
    ranges = [(i * 37, 5) for i in range(100)]
    assert [bytes(part) for part in source.read_ranges(ranges)] == [DATA[a : a + n] for a, n in ranges]
    assert source.counters.requests == 101


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60))), st.integers(0, 50))
def test_coalescing_covers_all_ranges_and_leaves_gaps_out(ranges: list[tuple[int, int]], gap: int) -> None:
    offsets = np.array([a for a, _ in ranges], dtype=np.int64)
    lengths = np.array([n for _, n in ranges], dtype=np.int64)
    starts, ends = coalesce(offsets, lengths, gap)
    for offset, length in ranges:
        assert any(a <= offset and offset + length <= b for a, b in zip(starts, ends, strict=True))
    assert (starts[1:] - ends[:-1] > gap).all()
    wanted = {byte for offset, length in ranges for byte in range(offset, offset + length)}
    assert {int(a) for a in starts} <= set(offsets.tolist())
    assert sum((ends - starts).tolist()) <= len(wanted) + gap * max(0, len(ranges) - 1)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_fetches_with_its_own_threads(path: Path) -> None:
    """Forked workers do not inherit the fetching threads of their parent."""
    source = FileIOSource(str(path), PyArrowFileIO(), gap=0)
    ranges = [(0, 5), (5000, 5)]
    source.read_ranges(ranges)
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        inherited, parts = pool.submit(_reread, str(path), ranges).result(timeout=60)
    assert inherited == 0
    assert parts == [DATA[:5], DATA[5000:5005]]


def _reread(path: str, ranges: list[tuple[int, int]]) -> tuple[int, list[bytes]]:
    inherited = _executor.cache_info().currsize
    if inherited:
        return inherited, []
    return inherited, [bytes(part) for part in FileIOSource(path, PyArrowFileIO(), gap=0).read_ranges(ranges)]
