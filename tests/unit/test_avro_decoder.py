"""Both decoders on hand-made bytes: valid and invalid Avro."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.avro import decoder as avro_file
from floeplan.metadata.avro.decoder import AvroReader, Block, ColumnReader, load_decoder
from floeplan.metadata.avro.program import (
    MAX_DEPTH,
    REASONS,
    Fields,
    Items,
    Keyed,
    Op,
    Present,
    Scalar,
    compile_program,
)
from tests.support.tables.manifests import Writer, recode, varint

pytestmark = pytest.mark.unit

DECODERS = [pytest.param(load_decoder(pure), id="python" if pure else "compiled") for pure in (False, True)]


def record(*fields: Any) -> str:
    named = [{"name": f"f{at}", "field-id": at, "type": avro} for at, avro in enumerate(fields)]
    return json.dumps({"type": "record", "name": "r", "fields": named})


def decode(decoder: type, schema: str, want: Fields, data: bytes, count: int = 1) -> dict[str, list[Any]]:
    reader = ColumnReader(decoder)
    reader.read(compile_program(schema, want), Block(data, count, 0), "x.avro")
    return {name: column.to_arrow().to_pylist() for name, column in reader.finish().items()}


A_MAP = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "kv",
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}],
    },
}
LONG = Fields(((0, Scalar("v")),))


@pytest.mark.parametrize("decoder", DECODERS)
def test_blocks_of_items_may_carry_their_size(decoder: type) -> None:
    """A negative count is followed by the size of the block, which lets a reader skip it."""
    items = varint(1) + varint(2) + b"ab" + varint(2) + varint(1) + b"c"
    array = varint(-2) + varint(len(items)) + items + varint(1) + varint(3) + varint(0) + varint(0)
    data = array + array + varint(42)
    want = Fields(((0, Keyed("m", (2, 3))), (2, Scalar("after"))))
    assert decode(decoder, record(A_MAP, A_MAP, "long"), want, data) == {"m2": [b"c"], "m3": [b""], "after": [42]}


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_last_of_two_equal_keys_counts(decoder: type) -> None:
    items = b"".join(varint(1) + varint(len(value)) + value for value in (b"first", b"2nd"))
    data = varint(2) + items + varint(0)
    rows = decode(decoder, record(A_MAP), Fields(((0, Keyed("m", (1,))),)), data + data, 2)
    assert rows == {"m1": [b"2nd", b"2nd"]}


@pytest.mark.parametrize("decoder", DECODERS)
def test_keys_may_come_in_any_order(decoder: type) -> None:
    keys = (5, 9, 1, 5, 3, 7, 2, 9)
    items = b"".join(varint(key) + varint(1) + bytes([at]) for at, key in enumerate(keys))
    rows = decode(decoder, record(A_MAP), Fields(((0, Keyed("m", (1, 3, 5, 7, 8))),)), varint(8) + items + varint(0))
    assert rows == {"m1": [b"\2"], "m3": [b"\4"], "m5": [b"\3"], "m7": [b"\5"], "m8": [None]}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("wide", [0, 63, 64, 2**20, -(2**34), 2**55, -(2**62), 2**63 - 1])
@pytest.mark.parametrize("at", range(9))
def test_numbers_of_every_width_are_skipped(decoder: type, wide: int, at: int) -> None:
    """Maps that are not requested are skipped without decoding their numbers."""
    numbers = [1] * 9
    numbers[at] = wide
    avro = json.loads(json.dumps(A_MAP).replace('"bytes"', '"long"'))
    items = b"".join(varint(key) + varint(number) for key, number in enumerate(numbers))
    data = varint(9) + items + varint(0) + varint(-42)
    assert decode(decoder, record(avro, "long"), Fields(((1, Scalar("after")),)), data) == {"after": [-42]}


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_value_in_a_map_may_be_optional(decoder: type) -> None:
    avro = json.loads(json.dumps(A_MAP).replace('"bytes"', '["long", "null"]'))
    data = varint(2) + varint(1) + varint(0) + varint(9) + varint(2) + varint(1) + varint(0)
    assert decode(decoder, record(avro), Fields(((0, Keyed("m", (1, 2))),)), data) == {"m1": [9], "m2": [None]}


@pytest.mark.parametrize("decoder", DECODERS)
def test_dropped_records_leave_nothing_behind(decoder: type) -> None:
    """Their values must not leak into the next record or count as items of a list."""
    schema = record(["null", "string"], "int", ["null", {"type": "array", "items": "long"}])
    want = Fields(((0, Scalar("s")), (1, Scalar("status")), (2, Items("l", Scalar("l[]")))))
    text, numbers = varint(1) + varint(3) + b"abc", varint(1) + varint(2) + varint(7) + varint(8) + varint(0)
    gone, kept = text + varint(2) + numbers, text + varint(1) + numbers
    without = varint(0) + varint(2) + varint(0), varint(0) + varint(1) + varint(0)
    reader = ColumnReader(decoder, drop=("status", 2))
    blocks = [gone + without[1], kept + gone, without[0] + gone, gone + kept + without[1] + gone]
    for block, count in zip(blocks, (2, 2, 2, 4), strict=True):
        reader.read(compile_program(schema, want), Block(block, count, 0), "x.avro")
    assert reader.records == 4
    found = {name: column.to_arrow().to_pylist() for name, column in reader.finish().items()}
    assert found == {
        "s": [None, b"abc", b"abc", None],
        "status": [1, 1, 1, 1],
        "l": [None, 2, 2, None],
        "l[]": [7, 8, 7, 8],
    }


@pytest.mark.parametrize("decoder", DECODERS)
def test_lists_nulls_and_marks(decoder: type) -> None:
    schema = record(["null", {"type": "array", "items": "long"}], ["null", "bytes"], "null", ["int", "string", "null"])
    want = Fields(((0, Items("l", Scalar("l[]"))), (1, Present("p")), (2, Scalar("n")), (3, Scalar("u"))))
    wanted_less = Fields(want.by_id[:3])
    rows = [
        varint(1) + varint(2) + varint(7) + varint(-8) + varint(0) + varint(1) + varint(1) + b"x" + varint(2),
        varint(0) + varint(0) + varint(1) + varint(2) + b"no",
        varint(1) + varint(0) + varint(0) + varint(0) + varint(5),
    ]
    found = decode(decoder, schema, wanted_less, b"".join(rows), 3)
    assert found == {"l": [2, None, 0], "l[]": [7, -8], "p": [1, None, None]}
    with pytest.raises(CorruptMetadataError, match="stores 'u' as"):
        decode(decoder, schema, want, b"".join(rows), 3)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("avro", "data", "reason"),
    [
        ("long", b"", 3),
        ("long", b"\x80", 0),
        ("long", b"\xff" * 9 + b"\x02", 1),
        ("long", b"\x80" * 11, 1),
        ("string", varint(3) + b"ab", 2),
        ("string", varint(-1), 2),
        ("string", varint(2**62), 2),
        ({"type": "fixed", "name": "f", "size": 4}, b"abc", 0),
        ("double", b"1234567", 0),
        ("float", b"123", 0),
        ("boolean", b"\x02", 5),
        (["null", "long"], varint(2) + varint(1), 4),
        (["null", "long"], varint(-1) + varint(1), 4),
        (["null", "long", "int"], varint(3) + varint(1), 4),
        ("long", varint(1) + b"\x00", 6),
    ],
)
def test_bytes_that_break_the_rules_are_refused(decoder: type, avro: Any, data: bytes, reason: int) -> None:
    for want in (LONG, Fields(())):
        with pytest.raises(CorruptMetadataError) as error:
            decode(decoder, record(avro), want, data)
        assert REASONS[reason] in error.value.message
        assert error.value.context["file"] == "x.avro"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("count", [varint(2**40), varint(-(2**63)) + varint(0), varint(-(2**40)) + varint(1)])
def test_a_count_of_more_items_than_bytes_costs_nothing(decoder: type, count: bytes) -> None:
    longs = {"type": "array", "items": "long"}
    for avro, want in [(longs, Items("l", Scalar("l[]"))), (A_MAP, Keyed("m", (1,))), (longs, None)]:
        fields = Fields(() if want is None else ((0, want),))
        with pytest.raises(CorruptMetadataError):
            decode(decoder, record(avro), fields, count + b"\x02")


@pytest.mark.parametrize("decoder", DECODERS)
def test_more_records_than_bytes_are_refused(decoder: type) -> None:
    with pytest.raises(CorruptMetadataError, match="a count is larger"):
        decode(decoder, record("null"), Fields(()), b"\x00", 2**40)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_widest_numbers_survive(decoder: type) -> None:
    values = [0, -1, 2**63 - 1, -(2**63), 63, 64, -64, -65]
    rows = decode(decoder, record("long"), LONG, b"".join(map(varint, values)), len(values))
    assert rows == {"v": values}


def test_both_decoders_know_the_same_instructions() -> None:
    """The instruction numbers are defined in both decoders."""
    text = (Path(avro_file.__file__).parent / "_avro_decode.pyx").read_text()
    for op in Op:
        assert f"    {op.name} = {op.value}\n" in text


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "not JSON"),
        ('"nonsense"', "unknown type 'nonsense'"),
        ("{}", "malformed"),
        ("7", "malformed"),
        (json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "field-id": 0}]}), "malformed"),
        (json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}), "recursive"),
        (record({"type": "array", "items": "long"}), "an array where the value 'v' is expected"),
        (record({"type": "fixed", "name": "f", "size": -1}), "fixed of -1 bytes"),
        (record(json.loads('{"type":' * (MAX_DEPTH + 2) + '"long"' + "}" * (MAX_DEPTH + 2))), "nests deeper"),
    ],
)
def test_invalid_schemas_are_refused(schema: str, problem: str) -> None:
    with pytest.raises(CorruptMetadataError, match=problem):
        compile_program(schema, LONG)


def test_a_header_seen_before_is_not_parsed_again() -> None:
    reader = AvroReader()
    first, second = (Writer().manifest([Writer().entry(name)]) for name in "ab")
    other = Writer(version=3).manifest([])
    header = reader.header(first, "a")
    assert reader.header(other, "c") is not header
    assert reader.header(second, "b") is header


@pytest.mark.parametrize("codec", ["deflate", "gzip", "zstandard", "snappy"])
def test_a_block_that_decompresses_without_end_is_refused(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Writer(codec=codec).manifest([Writer().entry("x" * 5000)])
    reader = AvroReader()
    header = reader.header(data, "m")
    assert len(list(reader.blocks(data, header, "m"))) == 1
    monkeypatch.setattr(avro_file, "MAX_BLOCK", 1000)
    with pytest.raises(CorruptMetadataError, match=r"cannot be inflated \(larger than"):
        list(reader.blocks(data, header, "m"))


def test_highly_compressed_blocks_are_read() -> None:
    data = Writer(codec="deflate").manifest([Writer().entry("x" * 500_000)])
    assert len(data) < 20_000
    reader = AvroReader()
    assert next(reader.blocks(data, reader.header(data, "m"), "m")).count == 1


def read_all(data: bytes) -> list[Block]:
    reader = AvroReader()
    return list(reader.blocks(data, reader.header(data, "m"), "m"))


@pytest.mark.parametrize("codec", ["null", "deflate", "gzip", "zstandard", "snappy"])
def test_a_file_cut_off_anywhere_is_damaged(codec: str) -> None:
    """Except between blocks, which only the manifest list reveals."""
    whole = recode(Writer(sync_interval=1).manifest([Writer().entry("a"), Writer().entry("b")]), codec)
    reader = AvroReader()
    header = reader.header(whole, "m")
    starts = {block.offset for block in reader.blocks(whole, header, "m")}
    assert len(starts) == 2
    for end in np.setdiff1d(np.arange(4, len(whole)), list(starts)).tolist():
        with pytest.raises(CorruptMetadataError):
            read_all(whole[:end])


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("expected", [0, 3, 40, 10_000])
def test_the_number_of_records_expected_is_a_guess_only(decoder: type, expected: int) -> None:
    """Values get longer after the first ones, from which sizes are estimated."""
    values = [b"x" * (200 if at < 20 else 5_000) for at in range(40)]
    reader = ColumnReader(decoder, expected=expected)
    data = b"".join(varint(len(value)) + value for value in values)
    reader.read(compile_program(record("bytes"), LONG), Block(data, len(values), 0), "x.avro")
    assert reader.finish()["v"].to_arrow().to_pylist() == values
