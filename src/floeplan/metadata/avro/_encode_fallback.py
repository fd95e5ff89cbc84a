"""The encoder in plain Python, for places without the compiled one: same programs, same bytes.

It follows ``_avro_encode`` step by step; both must be changed together.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

END, VARINT, BYTES, BOOL, FLOAT, DOUBLE, FIXED, OPTIONAL, LIST = range(9)

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

    def _bytes(self, column: int, row: int, with_length: bool) -> None:
        start, end = self._values[column][row : row + 2]
        if with_length:
            self._varint(end - start)
        self._out += self._data[column][start:end]

    def _list(self, column: int, row: int, pc: int) -> None:
        """All items as one block, then the empty block that ends a list."""
        domain, count = self._code[pc], self._values[column][row]
        if count:
            self._varint(count)
            for _ in range(count):
                self._run(pc + 2, domain)
                self._rows[domain] += 1
        self._varint(0)

    def _number(self, op: int, value: int) -> None:
        if op == BOOL:
            self._out.append(value != 0)
        elif op == DOUBLE:
            self._out += struct.pack("<q", value)
        else:  # FLOAT
            self._out += np.int64(value).view(np.float64).astype(np.float32).tobytes()

    def _run(self, pc: int, domain: int) -> None:
        """Run code up to its END for the next row of a domain."""
        code, row = self._code, self._rows[domain]
        while (op := code[pc]) != END:
            column = code[pc + 1]
            if op == VARINT:
                self._varint(self._values[column][row])
                pc += 2
            elif op in (BYTES, FIXED):
                self._bytes(column, row, op == BYTES)
                pc += 2
            elif op == OPTIONAL:
                valid = self._valid[column]
                present = valid is None or bool(valid[row])
                self._varint(int(present))
                pc += 3 if present else 3 + code[pc + 2]
            elif op == LIST:
                self._list(column, row, pc + 2)
                pc += 4 + code[pc + 3]
            else:
                self._number(op, self._values[column][row])
                pc += 2
