"""What Iceberg Java 1.12 answered to questions of size and packing, and its packer written down plainly."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

VECTORS = Path(__file__).parents[1] / "data" / "iceberg_java_1_12_planner.txt"


@dataclass(frozen=True)
class SizeVector:
    target: int
    smallest: int
    largest: int
    input_bytes: int
    expected_outputs: int
    split_size: int
    write_max: int


@dataclass(frozen=True)
class PackVector:
    items: list[int]
    target: int
    lookback: int
    largest_bin_first: bool
    max_items: int
    packed: list[list[int]]
    packed_from_end: list[list[int]]


def size_vectors() -> list[SizeVector]:
    return [SizeVector(*map(int, line.split(","))) for line in _lines() if not line.startswith("P|")]


def pack_vectors() -> list[PackVector]:
    return [_pack_vector(line) for line in _lines() if line.startswith("P|")]


def _pack_vector(line: str) -> PackVector:
    _, items, target, lookback, largest, most, packed, from_end = line.split("|")
    lists = (ast.literal_eval(text) for text in (items, packed, from_end))
    item_list, packed_list, end_list = lists
    return PackVector(item_list, int(target), int(lookback), largest == "true", int(most), packed_list, end_list)


def _lines() -> Iterator[str]:
    for line in VECTORS.read_text().splitlines():
        if line and not line.startswith("#"):
            yield line


def pack(
    items: Sequence[int], target: int, lookback: int = 1, largest_bin_first: bool = False, max_items: int = 2**63
) -> list[list[int]]:
    """First fit among the open bins; beyond the lookback the largest or the oldest bin is closed."""
    open_bins: list[list[int]] = []
    closed: list[list[int]] = []
    for item in items:
        fitting = (b for b in open_bins if sum(b) + item <= target and len(b) < max_items)
        chosen = next(fitting, None)
        if chosen is not None:
            chosen.append(item)
            continue
        open_bins.append([item])
        if len(open_bins) > lookback:
            full = max(open_bins, key=sum) if largest_bin_first else open_bins[0]
            open_bins = [b for b in open_bins if b is not full]
            closed.append(full)
    return closed + open_bins
