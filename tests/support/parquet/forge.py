"""Parquet footers made by hand, for layouts that no available writer produces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from floeplan.parquet.footer.thrift import BINARY, BOOL, EMPTY_STRUCT, I8, I32, I64, LIST, STRUCT, encode_struct

TYPE_DEFINED_ORDER = encode_struct([(1, STRUCT, EMPTY_STRUCT)])
INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = 1, 2, 3, 4, 5, 6, 7
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
UTF8, MAP, LIST_TYPE, DECIMAL, TIMESTAMP_MILLIS, UINT_32, INTERVAL = 0, 1, 3, 5, 9, 13, 21


def element(
    name: str,
    physical: int | None = None,
    *,
    repetition: int = OPTIONAL,
    children: int | None = None,
    length: int | None = None,
    converted: int | None = None,
    scale: int | None = None,
    precision: int | None = None,
    field_id: int | None = None,
    logical: bytes | None = None,
) -> bytes:
    """One element of the schema list."""
    fields = [
        (1, I32, physical),
        (2, I32, length),
        (3, I32, repetition),
        (4, BINARY, name.encode()),
        (5, I32, children),
        (6, I32, converted),
        (7, I32, scale),
        (8, I32, precision),
        (9, I32, field_id),
        (10, STRUCT, logical),
    ]
    return encode_struct(field for field in fields if field[2] is not None)


def logical(number: int, *details: tuple[int, int, Any]) -> bytes:
    """A logical type: one field of the union with its parameters."""
    return encode_struct([(number, STRUCT, encode_struct(details))])


def timestamp_type(unit: int, utc: bool = True) -> bytes:
    """The logical timestamp type; unit 1 is milliseconds, 2 micro, 3 nano."""
    return logical(8, (1, BOOL, utc), (2, STRUCT, logical(unit)))


def integer_type(bits: int, signed: bool) -> bytes:
    """The logical integer type."""
    return logical(10, (1, I8, bits), (2, BOOL, signed))


def statistics(
    *,
    min_value: bytes | None = None,
    max_value: bytes | None = None,
    old_min: bytes | None = None,
    old_max: bytes | None = None,
    nulls: int | None = None,
) -> bytes:
    """The statistics of a chunk."""
    fields = [
        (1, BINARY, old_max),
        (2, BINARY, old_min),
        (3, I64, nulls),
        (5, BINARY, max_value),
        (6, BINARY, min_value),
    ]
    return encode_struct(field for field in fields if field[2] is not None)


def chunk(
    physical: int,
    rows: int,
    stats: bytes | None = None,
    *,
    offset: int = 4,
    size: int = 10,
    outside: Iterable[tuple[int, int, Any]] = (),
    inside: Iterable[tuple[int, int, Any]] = (),
) -> bytes:
    """A column chunk; ``outside`` adds fields to the chunk, ``inside`` to its metadata after the statistics."""
    metadata: list[tuple[int, int, Any]] = [(1, I32, physical), (4, I32, 0), (5, I64, rows), (6, I64, size)]
    metadata += [(7, I64, size), (9, I64, offset)]
    metadata += [] if stats is None else [(12, STRUCT, stats)]
    return encode_struct([(2, I64, 0), (3, STRUCT, encode_struct([*metadata, *inside])), *outside])


def file(
    elements: Sequence[bytes],
    row_groups: Sequence[tuple[int, Sequence[bytes]]],
    *,
    orders: Sequence[bytes] | None = None,
    created_by: str = "forge version 1.0",
    body: bytes = b"",
    rows: int | None = None,
    extra: Iterable[tuple[int, int, Any]] = (),
) -> bytes:
    """A file with a body and a footer; row groups are (rows, chunks). Column orders default to the standard order."""
    groups = [encode_struct([(1, LIST, (STRUCT, chunks)), (2, I64, 0), (3, I64, n)]) for n, chunks in row_groups]
    leaves = max((len(chunks) for _, chunks in row_groups), default=0)
    ordered = [TYPE_DEFINED_ORDER] * leaves if orders is None else orders
    fields: list[tuple[int, int, Any]] = [
        (1, I32, 2),
        (2, LIST, (STRUCT, elements)),
        (3, I64, sum(n for n, _ in row_groups) if rows is None else rows),
        (4, LIST, (STRUCT, groups)),
        (6, BINARY, created_by.encode()),
    ]
    if ordered:
        fields.append((7, LIST, (STRUCT, ordered)))
    return sealed(encode_struct([*fields, *extra]), body)


def sealed(footer: bytes, body: bytes = b"") -> bytes:
    """A file around an encoded footer."""
    return b"PAR1" + body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def root(children: int) -> bytes:
    """The root element."""
    return element("schema", repetition=REQUIRED, children=children)


def one_column(leaf: bytes, chunks: Sequence[tuple[int, bytes]], **options: Any) -> bytes:
    """A file of one column; the chunks are (rows, chunk), one per row group."""
    return file([root(1), leaf], [(rows, [one]) for rows, one in chunks], **options)
