"""Decode programs: what to take out of an Avro record, compiled once per writer schema.

A ``Want`` names, by Iceberg field id, the values a caller needs. ``compile_program`` walks the writer's Avro schema and
emits a flat list of integers that a decoder runs for every record: requested values go into *sinks* (growable typed
columns), everything else is skipped. Unknown fields, unions in any order, and optional or required values are handled
by the program, which follows the writer's schema; callers only see which sinks exist.

Fail-safe: a shape that cannot be decoded as requested is an error naming the field; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from floeplan.errors import CorruptMetadataError

MAX_DEPTH = 32
"""Nesting allowed in an Avro schema; Iceberg's own metadata needs six."""

SKIP = -1
"""Sink number of a value that is skipped."""


class Op(IntEnum):
    """Instructions for reading, with their operands in order; ``length`` counts the integers of the nested code."""

    END = 0
    VARINT = 1
    BYTES = 2
    BOOL = 3
    FLOAT = 4
    DOUBLE = 5
    """sink, as for the four before it"""
    FIXED = 6
    """sink, size"""
    MARK = 7
    """sink: put a 1, reading nothing"""
    OPTIONAL = 8
    """null branch, length, code"""
    UNION = 9
    """branches, length, then per branch its start relative to the first branch, then the branches, each with END"""
    LIST = 10
    """sink of the item count, domain, length, code with END"""
    KEYED_VARINT = 11
    """keys, null branch of the value or -1, sorted keys, a sink per key"""
    KEYED_BYTES = 12
    """as KEYED_VARINT"""
    SKIP_ARRAY = 13
    """length, code with END"""
    SKIP_MAP = 14
    """length, code with END"""


class EncodeOp(IntEnum):
    """Instructions for writing; the first operand is a column, others follow in the order given here."""

    END = 0
    VARINT = 1
    BYTES = 2
    BOOL = 3
    FLOAT = 4
    DOUBLE = 5
    FIXED = 6
    OPTIONAL = 7
    """length of the code that follows, which is left out where the column is null"""
    LIST = 8
    """domain of the items, length, code with END"""


REASONS = (
    "the block ends within a value",
    "a variable-length number takes more than ten bytes",
    "a length is negative or reaches beyond the block",
    "a count is larger than the remaining bytes allow",
    "a union has no such branch",
    "a boolean is neither 0 nor 1",
    "bytes are left over after the last record of the block",
)
"""What a decoder may find wrong, by the number it reports."""


class BadAvro(ValueError):  # noqa: N818 - raised by decoders for avro_file, which knows the file and names it
    """Bytes that do not follow the writer's schema."""

    def __init__(self, error: int, offset: int) -> None:
        super().__init__(f"{REASONS[error]}, at byte {offset} of the block")
        self.error = error
        self.offset = offset


class Kind(IntEnum):
    """What a sink holds."""

    INT = 0
    FLOAT = 1
    BYTES = 2


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value per row."""

    name: str


@dataclass(frozen=True, slots=True)
class Present:
    """A 1 where there is a value of any kind."""

    name: str


@dataclass(frozen=True, slots=True)
class Keyed:
    """Of a map with integer keys, one column ``<prefix><key>`` for each of the keys."""

    prefix: str
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """Of a record, the fields with these ids."""

    by_id: tuple[tuple[int, Want], ...]


@dataclass(frozen=True, slots=True)
class Items:
    """Of a list, the count of items as ``<name>`` and the items in a separate domain.

    A scalar item is requested as ``<name>[]``.
    """

    name: str
    item: Scalar | Fields


@dataclass(frozen=True, slots=True)
class Whole:
    """A value with everything inside it, at any depth.

    A scalar is the column ``<name>``. A record is a 1 in ``<name>`` where there is one, and its fields are
    ``<name>.<number>``. A list or a map is its number of items in ``<name>``; its items are ``<name>[]`` and the text
    keys of a map ``<name>{}``, in a domain of their own.
    """

    name: str


Want: TypeAlias = Scalar | Present | Keyed | Fields | Items | Whole


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """A column a program writes to; ``domain`` names the list it belongs to, empty for the records themselves."""

    name: str
    kind: Kind
    domain: str
    avro_type: Any = field(compare=False, hash=False)


class Program(NamedTuple):
    """Code whose sink and domain operands are positions in ``sinks`` and ``domains`` until a decoder binds them."""

    code: npt.NDArray[np.int32]
    sinks: tuple[SinkSpec, ...]
    domains: tuple[str, ...]
    sink_operands: npt.NDArray[np.int64]
    domain_operands: npt.NDArray[np.int64]
    found: frozenset[str]
    """Names of the requested scalars and lists that the writer's schema has, including those of type null."""


@lru_cache(maxsize=512)
def compile_program(schema: str, want: Fields) -> Program:
    """Compile the Avro schema (its JSON text) for the requested fields.

    Raises:
        CorruptMetadataError: The schema is not an Avro record schema, or a requested field has an invalid shape.
    """
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise CorruptMetadataError(f"the Avro schema is not JSON: {error}") from error
    compiler = _Compiler()
    try:
        compiler.emit(parsed, want, "", 0)
        return Program(
            code=np.array([*compiler.code, Op.END], dtype=np.int32),
            sinks=tuple(compiler.sinks),
            domains=tuple(compiler.domains),
            sink_operands=np.array(compiler.sink_operands, dtype=np.int64),
            domain_operands=np.array(compiler.domain_operands, dtype=np.int64),
            found=frozenset(compiler.found),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise CorruptMetadataError(f"the Avro schema is malformed: {error!r}") from error


class _Compiler:
    """Appends instructions while walking the schema; the position of every sink and domain operand is kept."""

    def __init__(self) -> None:
        self.code: list[int] = []
        self.sinks: list[SinkSpec] = []
        self.places: dict[tuple[str, int, str], int] = {}
        self.domains: list[str] = [""]
        self.sink_operands: list[int] = []
        self.domain_operands: list[int] = []
        self.found: set[str] = set()
        self.named: dict[str, Any] = {}
        self.open: list[str] = []

    def emit(self, avro: Any, want: Want | None, domain: str, depth: int) -> None:
        """Emit the code that reads one value of this Avro type; ``None`` skips it."""
        if depth > MAX_DEPTH:
            raise CorruptMetadataError(f"the Avro schema nests deeper than {MAX_DEPTH} levels")
        if isinstance(avro, str):
            if avro in _PLAIN and avro not in self.named and not isinstance(want, Present):
                self._scalar({"type": avro}, want, domain)
                return
            avro = self.named.get(avro, {"type": avro})
        if isinstance(avro, list):
            self._union(avro, want, domain, depth)
            return
        kind = avro["type"]
        if isinstance(kind, dict | list) or kind in self.named:
            self.emit(kind, want, domain, depth + 1)
            return
        if kind in ("record", "fixed", "enum"):
            self._remember(avro)
        if isinstance(want, Whole) and kind in ("record", "array", "map"):
            self._whole(avro, want.name, domain, depth)
            return
        if isinstance(want, Present):
            self.code.append(Op.MARK)
            self._sink(want.name, Kind.INT, domain, avro)
            want = None
        match kind:
            case "record":
                self._record(avro, want, domain, depth)
            case "array":
                self._array(avro, want, domain, depth)
            case "map":
                if want is not None:
                    expected = _described(want)
                    raise CorruptMetadataError(f"the Avro schema has a map with text keys where {expected} is expected")
                self.code.append(Op.SKIP_MAP)
                self._nested(avro["values"], None, "", depth)
            case _:
                self._scalar(avro, want, domain)

    def _remember(self, avro: Mapping[str, Any]) -> None:
        name, namespace = avro["name"], avro.get("namespace")
        self.named[name] = avro
        if namespace:
            self.named[f"{namespace}.{name}"] = avro

    def _scalar(self, avro: Mapping[str, Any], want: Want | None, domain: str) -> None:
        kind = avro["type"]
        if kind == "null":
            return
        op, sink_kind = _SCALARS.get(kind, (None, None))
        if op is None or sink_kind is None:
            raise CorruptMetadataError(f"the Avro schema has an unknown type {kind!r}")
        if want is not None and not isinstance(want, Scalar | Whole):
            raise CorruptMetadataError(f"the Avro schema has {kind!r} where {_described(want)} is expected")
        self.code.append(op)
        if want is None:
            self.code.append(SKIP)
        else:
            self._sink(want.name, sink_kind, domain, avro)
        if op is Op.FIXED:
            size = int(avro["size"])
            if size < 0 or size > 2**31 - 1:
                raise CorruptMetadataError(f"the Avro schema has a fixed of {size} bytes")
            self.code.append(size)

    def _sink(self, name: str, kind: Kind, domain: str, avro: Any) -> None:
        position = self.places.setdefault((name, int(kind), domain), len(self.sinks))
        if position == len(self.sinks):
            self.sinks.append(SinkSpec(name, kind, domain, avro))
        self.sink_operands.append(len(self.code))
        self.code.append(position)

    def _record(self, avro: Mapping[str, Any], want: Want | None, domain: str, depth: int) -> None:
        if want is not None and not isinstance(want, Fields):
            raise CorruptMetadataError(f"the Avro schema has a record where {_described(want)} is expected")
        if avro["name"] in self.open:
            raise CorruptMetadataError(f"the Avro schema is recursive at {avro['name']!r}")
        wanted = {} if want is None else dict(want.by_id)
        self.open.append(avro["name"])
        for item in avro["fields"]:
            inner = wanted.get(item.get("field-id"))
            if isinstance(inner, Scalar | Present | Items | Whole):
                self.found.add(inner.name)
            self.emit(item["type"], inner, domain, depth + 1)
        self.open.pop()

    def _whole(self, avro: Mapping[str, Any], name: str, domain: str, depth: int) -> None:
        """Emit the code of a record, a list or a map with everything inside."""
        if avro["type"] == "record":
            if avro["name"] in self.open:
                raise CorruptMetadataError(f"the Avro schema is recursive at {avro['name']!r}")
            self.code.append(Op.MARK)
            self._sink(name, Kind.INT, domain, avro)
            self.open.append(avro["name"])
            for number, item in enumerate(avro["fields"]):
                self.emit(item["type"], Whole(f"{name}.{number}"), domain, depth + 1)
            self.open.pop()
            return
        items = f"{name}[]"
        self.domains.append(items)
        self.code.append(Op.LIST)
        self._sink(name, Kind.INT, domain, avro)
        self.domain_operands.append(len(self.code))
        self.code += [len(self.domains) - 1, 0]
        first = len(self.code)
        if avro["type"] == "map":  # a map is encoded as a list of records with a key and, after it, a value
            self.code.append(Op.BYTES)
            self._sink(f"{name}{{}}", Kind.BYTES, items, {"type": "string"})
        self.emit(avro["items" if avro["type"] == "array" else "values"], Whole(items), items, depth + 1)
        self.code.append(Op.END)
        self.code[first - 1] = len(self.code) - first

    def _union(self, branches: list[Any], want: Want | None, domain: str, depth: int) -> None:
        nulls = [position for position, branch in enumerate(branches) if branch in ("null", {"type": "null"})]
        if len(branches) == 2 and len(nulls) == 1:
            self.code += [Op.OPTIONAL, nulls[0]]
            self._nested(branches[1 - nulls[0]], want, domain, depth, end=False)
            return
        if isinstance(want, Whole):
            raise CorruptMetadataError("the Avro schema has a union other than of a type and null")
        self.code += [Op.UNION, len(branches), 0, *[0] * len(branches)]
        first = len(self.code)
        for position, branch in enumerate(branches):
            self.code[first - len(branches) + position] = len(self.code) - first
            self.emit(branch, want, domain, depth + 1)
            self.code.append(Op.END)
        self.code[first - len(branches) - 1] = len(self.code) - first

    def _array(self, avro: Mapping[str, Any], want: Want | None, domain: str, depth: int) -> None:
        if isinstance(want, Items):
            if domain:
                raise CorruptMetadataError(f"the Avro schema has a list within a list at {want.name!r}")
            self.domains.append(want.name)
            self.code.append(Op.LIST)
            self._sink(want.name, Kind.INT, domain, avro)
            self.domain_operands.append(len(self.code))
            self.code.append(len(self.domains) - 1)
            self._nested(avro["items"], want.item, want.name, depth)
        elif (want is None or isinstance(want, Keyed)) and self._keyed(avro, want, domain):
            pass
        elif want is None:
            self.code.append(Op.SKIP_ARRAY)
            self._nested(avro["items"], None, domain, depth)
        else:
            raise CorruptMetadataError(f"the Avro schema has an array where {_described(want)} is expected")

    def _nested(self, avro: Any, want: Want | None, domain: str, depth: int, *, end: bool = True) -> None:
        """Emit the code of a nested value, its length before it."""
        at = len(self.code)
        self.code.append(0)
        self.emit(avro, want, domain, depth + 1)
        if end:
            self.code.append(Op.END)
        self.code[at] = len(self.code) - at - 1

    def _keyed(self, avro: Mapping[str, Any], want: Keyed | None, domain: str) -> bool:
        """An Iceberg map with integer keys: an array of records with a key and, after it, a value.

        A map is skipped when none of its keys is requested. Returns whether the array is such a map.
        """
        entry = avro["items"]
        entry = self.named.get(entry, entry) if isinstance(entry, str) else entry
        if not isinstance(entry, dict) or entry["type"] != "record":
            return False
        if [item["name"] for item in entry["fields"]] != ["key", "value"]:
            return False
        key_type, value_type = entry["fields"][0]["type"], entry["fields"][1]["type"]
        value_type, null_branch = _unwrap_optional(value_type)
        if key_type not in ("int", "long") or value_type not in ("int", "long", "bytes"):
            return False
        self._remember(entry)
        op, kind = (Op.KEYED_BYTES, Kind.BYTES) if value_type == "bytes" else (Op.KEYED_VARINT, Kind.INT)
        keys = [] if want is None else sorted(set(want.keys))
        self.code += [op, len(keys), null_branch, *keys]
        if want is not None:
            for key in keys:
                self._sink(f"{want.prefix}{key}", kind, domain, value_type)
        return True


_PLAIN = frozenset({"int", "long", "boolean", "float", "double", "string", "bytes"})
"""Types whose name is their whole schema."""

_SCALARS: Mapping[str, tuple[Op, Kind]] = {
    "int": (Op.VARINT, Kind.INT),
    "long": (Op.VARINT, Kind.INT),
    "enum": (Op.VARINT, Kind.INT),
    "boolean": (Op.BOOL, Kind.INT),
    "float": (Op.FLOAT, Kind.FLOAT),
    "double": (Op.DOUBLE, Kind.FLOAT),
    "string": (Op.BYTES, Kind.BYTES),
    "bytes": (Op.BYTES, Kind.BYTES),
    "fixed": (Op.FIXED, Kind.BYTES),
}


def _unwrap_optional(avro: Any) -> tuple[Any, int]:
    """The type within an optional and the number of its null branch, or the type itself and -1."""
    if isinstance(avro, list) and len(avro) == 2 and "null" in avro:
        null_branch = avro.index("null")
        return _unwrap_optional(avro[1 - null_branch])[0], null_branch
    if isinstance(avro, dict) and isinstance(avro["type"], str):
        return avro["type"], -1
    return avro, -1


def _described(want: Want) -> str:
    if isinstance(want, Fields):
        return "a record"
    noun = {Scalar: "the value ", Items: "the list ", Keyed: "the map "}.get(type(want), "")
    return f"{noun}{(want.prefix if isinstance(want, Keyed) else want.name)!r}"
