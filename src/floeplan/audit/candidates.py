"""Layout changes as candidates: what all logged runs read before and after, and their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from floeplan.partition.evolution import Term

SPEC, SORT, ZORDER, BINPACK, UPGRADE, MANIFESTS = KINDS = (
    "spec",
    "sort",
    "zorder",
    "binpack",
    "upgrade-spec",
    "manifests",
)

TIE = 0.02
"""Candidates whose costs differ by less than this fraction are tied."""

HIGH, MEDIUM, LOW = "high", "medium", "low"


@dataclass(frozen=True, slots=True)
class Reads:
    """What all logged runs read: bytes of files, and how many files and manifests they open."""

    bytes: float = 0.0
    files: float = 0.0
    manifests: float = 0.0
    manifest_bytes: float = 0.0

    def cost(self, open_cost: int) -> float:
        """In bytes, with ``open_cost`` for everything that is opened."""
        return self.bytes + self.manifest_bytes + open_cost * (self.files + self.manifests)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout change, and what it is expected to save over all logged runs.

    Attributes:
        kind: One of ``KINDS``.
        columns: The columns or transforms of the layout.
        estimated_bytes_before: Bytes of whole files that all runs read now: of manifests for ``manifests``, of files of
            older specs for ``upgrade-spec``.
        estimated_bytes_after: The same with the candidate applied.
        basis: What the estimate is based on.
        bytes_rewritten: The cost of applying it; zero means metadata only.
        command: The commands that apply it.
        terms: The partition fields of a ``spec``.
        files_opened: Data files that all runs open now, and with the candidate; manifests for ``manifests``.
        files_total: Files of the table now, and with the candidate.
        cost: Bytes and the cost of opening files and manifests, now and with the candidate.
        confidence: ``high`` from partition values or rows, ``medium`` from bounds of numbers and times, ``low`` from
            bounds that say little about values: those of strings, or of most of the column's range.
        rank: 1 for the best; tied candidates share a rank.
    """

    kind: str
    columns: tuple[str, ...]
    estimated_bytes_before: int
    estimated_bytes_after: int
    basis: str
    bytes_rewritten: int
    command: str
    terms: tuple[Term, ...] = ()
    files_opened: tuple[int, int] = (0, 0)
    files_total: tuple[int, int] = (0, 0)
    cost: tuple[int, int] = (0, 0)
    confidence: str = HIGH
    rank: int = 1

    @property
    def saved(self) -> int:
        """The bytes that would no longer be read."""
        return self.estimated_bytes_before - self.estimated_bytes_after

    @property
    def gain(self) -> int:
        """The cost that would be saved."""
        return self.cost[0] - self.cost[1]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        names = ("rank", "kind", "columns", "estimated_bytes_before", "estimated_bytes_after", "basis", "confidence")
        pairs = {"files_opened": self.files_opened, "files_total": self.files_total, "read_cost": self.cost}
        return (
            {name: getattr(self, name) for name in names}
            | {
                f"{name}_{when}": pair[at]
                for name, pair in pairs.items()
                for at, when in enumerate(("before", "after"))
            }
            | {"cost": {"bytes_rewritten": self.bytes_rewritten, "metadata_only": self.bytes_rewritten == 0}}
            | {"command": self.command}
        )


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The largest gains first; candidates of about the same gain share a rank, the cheapest to apply first."""
    left, found = sorted(candidates, key=lambda one: -one.gain), list[Candidate]()
    for rank in range(1, len(left) + 1):
        if not left:
            break
        tied = [one for one in left if left[0].gain - one.gain <= TIE * left[0].gain]
        tied.sort(key=lambda one: (one.bytes_rewritten, _EFFORT[one.kind], len(one.columns)))
        found += [replace(one, rank=rank) for one in tied]
        left = left[len(tied) :]
    return found


_EFFORT = {MANIFESTS: 0, UPGRADE: 1, BINPACK: 2, SORT: 3, ZORDER: 4, SPEC: 5}
"""Of tied candidates the one that changes least comes first."""
