"""Damage as data: random edits of trees and bytes that can be stored as JSON and replayed.

A tree is decoded JSON or Avro; an edit names a place in it by its keys. Bytes are stored as ``{"hex": …}``, so that a
case is a text file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

from floeplan.metadata.avro.decoder import AvroReader

Edit = list[Any]
"""``["set", place, value]`` or ``["drop", place]`` of a tree; ``[kind, at, hex]`` of bytes."""

NUMBERS = (0, 1, -1, 2, 3, 99, 1000, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "x",
    "\x00",
    "é😀",
    "../../../outside",
    "file:///nowhere/at/all",
    "s3://bucket/none",
    "http://[::1",
    "PARQUET",
    "-1",
    "a" * 5000,
    "%s{}",
    "identity",
    "bucket[0]",
    "truncate[99999999999]",
    "decimal(99, 3)",
    "fixed[-1]",
)
BLOBS = (b"", b"\x00", b"\xff" * 4, b"\xff" * 8, b"\x00" * 16, b"a" * 300)
OTHERS: tuple[Any, ...] = (None, True, False, 0.5, 1e308, 2**70, [], {}, [[]], {"": None}, [None] * 50)


def tree_edits(tree: Any, random: Random, *, typed: bool) -> list[Edit]:
    """One to three edits; with ``typed`` a value keeps its type, as Avro requires, or becomes null."""
    places = list(_places(tree))
    edits = []
    for place in random.choices(places, k=random.choice((1, 1, 1, 2, 3))):
        value = _at(tree, place)
        if not typed and random.random() < 0.25:
            edits.append(["drop", place])
        elif random.random() < 0.15:
            alike = [p for p in places if isinstance(_at(tree, p), type(value))]
            edits.append(["set", place, _written(_at(tree, random.choice(alike)))])
        else:
            edits.append(["set", place, _written(_hostile(value, random, typed=typed))])
    return edits


def byte_edits(size: int, random: Random) -> list[Edit]:
    """One to three edits of ``size`` bytes; positions count from the end, where Parquet and Puffin have footers."""
    edits: list[Edit] = []
    for _ in range(random.choice((1, 1, 2, 3))):
        at = -random.randint(1, min(size, random.choice((16, 300, size))))
        kind = random.choice(("xor", "put", "put", "insert", "take", "cut"))
        edits.append([kind, at, random.choice((random.randbytes(random.choice((1, 1, 4, 8))), b"\xff" * 5)).hex()])
    return edits


def block_ends(data: bytes) -> list[int]:
    """Where the header and the blocks of an Avro file end: cut there, it is a valid file with fewer records."""
    reader = AvroReader()
    header = reader.header(data, "")
    return [*(block.offset for block in reader.blocks(data, header, "")), len(data)]


def edited_tree(tree: Any, edits: list[Edit]) -> Any:
    """A copy of the tree with the edits applied; edits of missing places are skipped."""
    root = {"": copy.deepcopy(tree)}
    for kind, place, *value in edits:
        *inside, last = ["", *place]
        try:
            holder: Any = root
            for key in inside:
                holder = holder[key]
            if kind == "set":
                holder[last] = _read(value[0])
            else:
                del holder[last]
        except (LookupError, TypeError):
            continue
    return root.get("")


def edited_bytes(data: bytes, edits: list[Edit]) -> bytes:
    """The bytes with the edits applied."""
    found = bytearray(data)
    for kind, at, text in edits:
        piece = bytes.fromhex(text)
        start = max(len(found) + at, 0)
        if kind == "xor":
            piece = bytes(a ^ b for a, b in zip(found[start : start + len(piece)], piece, strict=False))
        end = {"insert": start, "cut": len(found)}.get(kind, start + len(piece))
        found[start:end] = b"" if kind in ("take", "cut") else piece
    return bytes(found)


def _places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    yield list(at)
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _places(value, (*at, key))


def _at(tree: Any, place: list[Any]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def _hostile(value: Any, random: Random, *, typed: bool) -> Any:
    if not typed and random.random() < 0.3:
        return random.choice((*OTHERS, *TEXTS, *NUMBERS))
    if isinstance(value, bool):
        return random.choice((not value, None))
    if isinstance(value, int):
        return random.choice((*NUMBERS, value + 1, value - 1, -value, None))
    if isinstance(value, str):
        return random.choice((*TEXTS, value[:-1], value + value, None))
    if isinstance(value, bytes):
        return random.choice((*BLOBS, value[:-1], value + b"\x00", value[::-1], None))
    if isinstance(value, list):
        return random.choice(([], value * 2, value[:-1], value[::-1], None))
    return random.choice((None, {}, *(() if typed else OTHERS)))


def _written(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    return [_written(item) for item in value] if isinstance(value, list) else value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"hex"}:
            return bytes.fromhex(value["hex"])
        return {key: _read(item) for key, item in value.items()}
    return [_read(item) for item in value] if isinstance(value, list) else value
