"""The decoder and the encoder in plain Python, for places without the compiled ones: same programs, columns and errors.

They follow ``_avro_decode`` and ``_avro_encode`` step by step; both must be changed together.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from floeplan.metadata.avro.program import BadAvro, EncodeOp, Kind, Op

TRUNCATED, LONG_VARINT, BAD_LENGTH, BAD_COUNT, BAD_BRANCH, BAD_BOOLEAN, LEFT_OVER = range(7)
INT64_MIN = -(2**63)
# Plain integers: comparing them is faster than comparing members of an enumeration.
END, VARINT, BYTES, BOOL, FLOAT, DOUBLE, FIXED, MARK, OPTIONAL = (int(op) for op in list(Op)[:9])
LIST, KEYED_VARINT, KEYED_BYTES, SKIP_ARRAY, SKIP_MAP = (int(op) for op in list(Op)[10:])
ENCODE_OPTIONAL, ENCODE_LIST = int(EncodeOp.OPTIONAL), int(EncodeOp.LIST)

Buffers: TypeAlias = "tuple[array[Any], bytearray, bytearray]"


class _Sink:
    """A growing column; for bytes ``values`` holds the end of each row, after a leading zero."""

    __slots__ = ("data", "domain", "is_bytes", "rows", "valid", "values")

    def __init__(self, kind: int, domain: int) -> None:
        self.domain = domain
        self.is_bytes = kind == Kind.BYTES
        self.values: array[Any] = array("d") if kind == Kind.FLOAT else array("q")
        if self.is_bytes:
            self.values.append(0)
        self.valid = bytearray()
        self.data = bytearray()
        self.rows = 0

    def pad(self, row: int) -> None:
        """Fill with nulls up to ``row``."""
        missing = row - self.rows
        if missing > 0:
            self.valid.extend(bytes(missing))
            self.values.extend([len(self.data) if self.is_bytes else 0] * missing)
            self.rows = row

    def cut(self, row: int) -> None:
        """Remove ``row`` and all after it."""
        if self.rows > row:
            if self.is_bytes:
                del self.data[int(self.values[row]) :]
            del self.values[row + self.is_bytes :], self.valid[row:]
            self.rows = row

    def has(self, row: int, value: int) -> bool:
        return self.rows > row and bool(self.valid[row]) and self.values[row] == value

    def put(self, row: int, value: Any) -> None:
        """Set a row; of a key that a map has twice the last value counts."""
        again = self.rows > row
        if not again:
            self.pad(row)
        if self.is_bytes:
            if again:
                del self.data[int(self.values[row]) :]
            self.data += value
            value = len(self.data)
        if again:
            self.values[row + self.is_bytes] = value
            return
        self.values.append(value)
        self.valid.append(1)
        self.rows = row + 1


class Decoder:
    """Columns that grow as blocks are decoded into them. Domain 0 holds the records; lists need no count."""

    def __init__(self, expected: int = 0) -> None:
        self._sinks: list[_Sink] = []
        self._rows = [0]
        self._data = memoryview(b"")
        self._end = 0
        self._at = 0
        self._code: list[int] = []

    def add_domain(self) -> int:
        """A new row space; returns its number."""
        self._rows.append(0)
        return len(self._rows) - 1

    def add_sink(self, kind: int, domain: int) -> int:
        """A new column in a domain, null for the rows so far; returns its number."""
        self._sinks.append(_Sink(kind, domain))
        return len(self._sinks) - 1

    def row_count(self, domain: int) -> int:
        """Rows so far."""
        return self._rows[domain]

    def decode(
        self,
        code: npt.NDArray[np.int32],
        data: bytes | bytearray | memoryview,
        count: int,
        drop_sink: int = -1,
        drop_value: int = 0,
    ) -> None:
        """Append ``count`` records; the block must hold exactly those.

        Records that have ``drop_value`` in ``drop_sink``, if one is given, leave nothing behind.
        """
        self._data, self._end, self._at = memoryview(data), len(data), 0
        self._code = code.tolist()
        if count < 0 or count > self._end:
            raise BadAvro(BAD_COUNT, 0)
        for _ in range(count):
            before = list(self._rows)
            self._run(0)
            if drop_sink >= 0 and self._sinks[drop_sink].has(self._rows[0], drop_value):
                self._rows = before
                for sink in self._sinks:
                    sink.cut(before[sink.domain])
            else:
                self._rows[0] += 1
        if self._at != self._end:
            raise BadAvro(LEFT_OVER, self._at)

    def finish(self) -> list[Buffers]:
        """Every sink's (values, validity, data) as buffers; the decoder is empty afterwards."""
        for sink in self._sinks:
            sink.pad(self._rows[sink.domain])
        columns = [(sink.values, sink.valid, sink.data) for sink in self._sinks]
        self._sinks = []
        self._rows = [0] * len(self._rows)
        return columns

    def _varint(self) -> int:
        bits, shift, at = 0, 0, self._at
        while True:
            if at >= self._end:
                raise BadAvro(TRUNCATED, self._at)
            byte = self._data[at]
            if shift == 63 and byte > 1:
                raise BadAvro(LONG_VARINT, self._at)
            bits |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                self._at = at
                return (bits >> 1) ^ -(bits & 1)
            shift += 7

    def _length(self) -> int:
        start = self._at
        length = self._varint()
        if length < 0 or length > self._end - self._at:
            raise BadAvro(BAD_LENGTH, start)
        return length

    def _take(self, size: int) -> memoryview:
        if self._end - self._at < size:
            raise BadAvro(TRUNCATED, self._at)
        self._at += size
        return self._data[self._at - size : self._at]

    def _count(self) -> tuple[int, int]:
        """The item count of an array or map block, and its length in bytes if the writer gave it, else -1."""
        start, size = self._at, -1
        count = self._varint()
        if count < 0:
            if count == INT64_MIN:
                raise BadAvro(BAD_COUNT, start)
            count = -count
            size = self._length()
        if count > self._end - self._at:
            raise BadAvro(BAD_COUNT, start)
        return count, size

    def _branch(self, branches: int) -> int:
        start = self._at
        branch = self._varint()
        if branch < 0 or branch >= branches:
            raise BadAvro(BAD_BRANCH, start)
        return branch

    def _put(self, number: int, value: float | memoryview) -> None:
        if number >= 0:
            sink = self._sinks[number]
            sink.put(self._rows[sink.domain], value)

    def _keyed(self, pc: int, is_bytes: bool) -> None:
        keys, null_branch = self._code[pc], self._code[pc + 1]
        first = pc + 2
        sinks = dict(zip(self._code[first : first + keys], self._code[first + keys : first + 2 * keys], strict=True))
        while True:
            count, size = self._count()
            if count == 0:
                return
            if not sinks and size >= 0:
                self._at += size
                continue
            for _ in range(count):
                sink = sinks.get(self._varint(), -1)
                if null_branch >= 0 and self._branch(2) == null_branch:
                    continue
                self._put(sink, self._take(self._length()) if is_bytes else self._varint())

    def _list(self, pc: int) -> None:
        domain = self._code[pc + 1]
        first = self._rows[domain]
        while (count := self._count()[0]) != 0:
            for _ in range(count):
                self._run(pc + 3)
                self._rows[domain] += 1
        self._put(self._code[pc], self._rows[domain] - first)

    def _run(self, pc: int) -> None:
        """Run code up to its END."""
        code = self._code
        while True:
            op = code[pc]
            if op == END:
                return
            elif op == VARINT:
                self._put(code[pc + 1], self._varint())
                pc += 2
            elif op == BYTES:
                self._put(code[pc + 1], self._take(self._length()))
                pc += 2
            elif op == OPTIONAL:
                pc += 3 + (code[pc + 2] if self._branch(2) == code[pc + 1] else 0)
            elif op in (KEYED_VARINT, KEYED_BYTES):
                self._keyed(pc + 1, op == KEYED_BYTES)
                pc += 3 + 2 * code[pc + 1]
            elif op in (SKIP_ARRAY, SKIP_MAP):
                while (block := self._count())[0]:
                    count, size = block
                    if size >= 0:
                        self._at += size
                        continue
                    for _ in range(count):
                        if op == SKIP_MAP:
                            self._take(self._length())
                        self._run(pc + 2)
                pc += 2 + code[pc + 1]
            elif op == LIST:
                self._list(pc + 1)
                pc += 4 + code[pc + 3]
            elif op == FIXED:
                self._put(code[pc + 1], self._take(code[pc + 2]))
                pc += 3
            elif op == MARK:
                self._put(code[pc + 1], 1)
                pc += 2
            elif op == BOOL:
                start, value = self._at, self._take(1)[0]
                if value > 1:
                    raise BadAvro(BAD_BOOLEAN, start)
                self._put(code[pc + 1], value)
                pc += 2
            elif op in (FLOAT, DOUBLE):
                real = struct.unpack("<d" if op == DOUBLE else "<f", self._take(8 if op == DOUBLE else 4))
                self._put(code[pc + 1], real[0])
                pc += 2
            else:  # UNION
                first = pc + 3 + code[pc + 1]
                self._run(first + code[pc + 3 + self._branch(code[pc + 1])])
                pc = first + code[pc + 2]


ColumnBuffers: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8] | None, npt.NDArray[np.uint8]]


class Encoder:
    """Writes the rows of domain 0 as records, in order."""

    def __init__(
        self, code: npt.NDArray[np.int32], columns: Sequence[ColumnBuffers], domains: int, records: int
    ) -> None:
        self._code: list[int] = code.tolist()
        self._values: list[list[int]] = [values.tolist() for values, _, _ in columns]
        self._valid: list[list[int] | None] = [None if valid is None else valid.tolist() for _, valid, _ in columns]
        self._data = [data.tobytes() for _, _, data in columns]
        self._rows = [0] * domains
        self._records = records
        self._out = bytearray()

    def encode(self, limit: int) -> tuple[bytes, int]:
        """The next records, as many as it takes to have ``limit`` bytes, and their number."""
        first = self._rows[0]
        self._out = bytearray()
        while self._rows[0] < self._records and len(self._out) < limit:
            self._run(0, 0)
            self._rows[0] += 1
        return bytes(self._out), self._rows[0] - first

    def _varint(self, value: int) -> None:
        bits = (value << 1) ^ (value >> 63)
        while bits > 0x7F:
            self._out.append(bits & 0x7F | 0x80)
            bits >>= 7
        self._out.append(bits)

    def _list(self, column: int, row: int, pc: int) -> None:
        """All items as one block, then the empty block that ends a list."""
        domain, count = self._code[pc], self._values[column][row]
        if count:
            self._varint(count)
            for _ in range(count):
                self._run(pc + 2, domain)
                self._rows[domain] += 1
        self._varint(0)

    def _run(self, pc: int, domain: int) -> None:
        """Run code up to its END for the next row of a domain."""
        code, row = self._code, self._rows[domain]
        while (op := code[pc]) != END:
            column = code[pc + 1]
            if op == VARINT:
                self._varint(self._values[column][row])
                pc += 2
            elif op in (BYTES, FIXED):
                start, end = self._values[column][row : row + 2]
                if op == BYTES:
                    self._varint(end - start)
                self._out += self._data[column][start:end]
                pc += 2
            elif op == ENCODE_OPTIONAL:
                valid = self._valid[column]
                present = valid is None or bool(valid[row])
                self._varint(int(present))
                pc += 3 if present else 3 + code[pc + 2]
            elif op == ENCODE_LIST:
                self._list(column, row, pc + 2)
                pc += 4 + code[pc + 3]
            else:
                value = self._values[column][row]
                if op == BOOL:
                    self._out.append(value != 0)
                elif op == DOUBLE:
                    self._out += struct.pack("<q", value)
                else:  # FLOAT
                    self._out += np.int64(value).view(np.float64).astype(np.float32).tobytes()
                pc += 2
