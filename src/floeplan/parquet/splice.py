"""Changing single values of encoded Thrift structs and leaving every other byte as it is.

An edit says what becomes of a struct: ``{field id: edit}``, where a function changes an integer, bytes stand for the
encoded value of the field from now on, a mapping goes on inside a struct, and ``Each`` inside every struct of a list.
A field that is not there stays away. Nothing in Thrift states the length of a struct, so values may grow and shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from floeplan.parquet import _thrift_fallback as wire
from floeplan.parquet.thrift import I64, corrupt, encode_value

Edit: TypeAlias = "Callable[[int], int] | bytes | Mapping[int, Edit] | Each"


@dataclass(frozen=True, slots=True)
class Each:
    """The edit of every struct in a list, by its place there."""

    edit: Callable[[int], Mapping[int, Edit]]


def splice(data: bytes, edits: Mapping[int, Edit], what: str, file: str, at: int = 0) -> bytes:
    """The struct that starts at ``at`` with edits made.

    Args:
        data: The encoded struct, and whatever stands behind it.
        edits: What becomes of its fields.
        what: The thing being changed, for messages.
        file: The file it was read from, for messages.
        at: Where it starts.
    """
    made = bytearray()
    try:
        _struct(data, at, edits, made)
    except IndexError:
        raise corrupt(file, f"the {what} ends in the middle of a value", at) from None
    except ValueError as error:
        raise corrupt(file, f"the {what} cannot be decoded: {error}", at) from None
    return bytes(made)


def _struct(data: bytes, at: int, edits: Mapping[int, Edit], made: bytearray) -> int:
    """Copy a struct with its edits; where it ends."""
    field, copied = 0, at
    while data[at]:
        header = data[at]
        at += 1
        if header > 15:
            field += header >> 4
        else:
            field, at = wire._read_zigzag(data, at)
        edit = edits.get(field)
        if edit is None:
            at = wire._skip_field(data, at, header & 15, 0)
            continue
        made += data[copied:at]
        copied = at = _value(data, at, header & 15, edit, made)
    made += data[copied : at + 1]
    return at + 1


def _value(data: bytes, at: int, kind: int, edit: Edit, made: bytearray) -> int:
    if isinstance(edit, bytes):
        made += edit
        return wire._skip_field(data, at, kind, 0)
    if isinstance(edit, Each):
        return _list(data, at, edit, made)
    if isinstance(edit, Mapping):
        return _struct(data, at, edit, made)
    value, at = wire._read_zigzag(data, at)
    made += encode_value(I64, edit(value))
    return at


def _list(data: bytes, at: int, edit: Each, made: bytearray) -> int:
    start = at
    size, _, at = wire._read_list_header(data, at)
    made += data[start:at]
    for place in range(size):
        at = _struct(data, at, edit.edit(place), made)
    return at
