"""Compact Thrift: round trips, and every length and count is validated."""

from __future__ import annotations

import time
from itertools import pairwise
from types import ModuleType

import pytest

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer import thrift
from floeplan.parquet.footer.thrift import BINARY, BOOL, DOUBLE, I8, I16, I32, I64, LIST, STRUCT, encode_struct

pytestmark = pytest.mark.unit

EVERYTHING = encode_struct(
    [
        (1, BOOL, True),
        (2, BOOL, False),
        (3, I8, -5),
        (4, I16, -300),
        (5, I32, 2**31 - 1),
        (6, I64, -(2**63)),
        (7, DOUBLE, 1.5),
        (8, BINARY, b"text"),
        (40, LIST, (I32, list(range(20)))),
        (41, LIST, (BOOL, [True, False])),
        (42, STRUCT, encode_struct([(1, LIST, (STRUCT, [encode_struct([(1, I32, 7), (2, BINARY, b"x")])]))])),
        (43, LIST, (BINARY, [b"", b"ab"])),
    ]
)
DECODED = {
    1: True,
    2: False,
    3: -5,
    4: -300,
    5: 2**31 - 1,
    6: -(2**63),
    7: 1.5,
    8: b"text",
    40: list(range(20)),
    41: [True, False],
    42: {1: [{1: 7, 2: b"x"}]},
    43: [b"", b"ab"],
}


@pytest.fixture(params=["fallback", "chosen"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The reader with the compiled decoder and with the Python decoder."""
    if request.param == "fallback":
        monkeypatch.setattr(thrift, "_read_struct", thrift.read_struct_in_python)
    return thrift


def test_what_is_written_is_read(reader: ModuleType) -> None:
    assert reader.read_struct(EVERYTHING, 0, None, "thing", "f") == (DECODED, len(EVERYTHING))


def test_only_what_the_shape_names_is_decoded(reader: ModuleType) -> None:
    shape = {2: None, 8: None, 42: {1: {2: None}}}
    decoded, end = reader.read_struct(b"skipped" + EVERYTHING, 7, shape, "thing", "f")
    assert decoded == {2: False, 8: b"text", 42: {1: [{2: b"x"}]}}
    assert end == 7 + len(EVERYTHING)


def test_a_list_can_be_taken_as_the_places_of_its_elements(reader: ModuleType) -> None:
    inner = [encode_struct([(1, I32, n), (2, BINARY, b"x" * n)]) for n in range(30)]
    data = encode_struct([(1, LIST, (STRUCT, inner)), (2, I32, 5)])
    decoded, _ = reader.read_struct(data, 0, {1: ...}, "thing", "f")
    places = list(decoded[1])
    assert [data[a:b] for a, b in pairwise(places)] == inner


@pytest.mark.parametrize("cut", range(len(EVERYTHING)))
def test_a_cut_anywhere_is_an_error_that_names_the_file(reader: ModuleType, cut: int) -> None:
    with pytest.raises(CorruptFileError, match=r"a\.parquet.*thing"):
        reader.read_struct(EVERYTHING[:cut], 0, None, "thing", "a.parquet")
    with pytest.raises(CorruptFileError, match=r"a\.parquet.*thing"):
        reader.read_struct(EVERYTHING[:cut], 0, {}, "thing", "a.parquet")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x19\xf5\xff\xff\xff\xff\x07" + b"\0" * 40, "a list claims 2147483647 elements"),
        (b"\x19\xf7\x64" + b"\0" * 400, "a list claims 100 elements"),
        (b"\x1b\xff\xff\xff\xff\x07\x55" + b"\0" * 40, "a map claims 2147483647 entries"),
        (b"\x18\xff\xff\xff\xff\x07" + b"\0" * 40, "ends in the middle"),
        (b"\x15" + b"\xff" * 20 + b"\0", "more than ten bytes"),
        (b"\x1e\0\0\0", "14 is no type"),
        (b"\x10\0\0\0", "0 is no type"),
        (b"\x1c" * 1000 + b"\0" * 1000, "nesting deeper"),
        (b"\x19" * 1000 + b"\0" * 1000, "nesting deeper|cannot be decoded"),
        (b"\x19" + b"\x19" * 1000 + b"\0" * 1000, "nesting deeper"),
    ],
)
@pytest.mark.parametrize("shape", [None, {}])
def test_hostile_bytes_cost_nothing(reader: ModuleType, data: bytes, problem: str, shape: object) -> None:
    started = time.process_time()
    with pytest.raises(CorruptFileError, match=problem):
        reader.read_struct(data, 0, shape, "thing", "f")
    assert time.process_time() - started < 0.5


def test_maps_and_unknown_kinds_are_skipped(reader: ModuleType) -> None:
    skipped = b"\x1b\x02\x85\x01a\x02\x01b\x04" + b"\x1d" + b"u" * 16 + b"\x15\x08\x00"
    assert reader.read_struct(skipped, 0, {3: None}, "thing", "f") == ({3: 4}, len(skipped))
    assert reader.read_struct(skipped, 0, None, "thing", "f")[0][3] == 4
