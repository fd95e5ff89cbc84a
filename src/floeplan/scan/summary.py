"""The numbers of a plan per pass and per partition spec.

A number that metadata does not give is ``None``, never a guess: row groups of files whose footers were not opened,
bytes of files whose manifests were skipped and whose snapshot has no totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from floeplan.snapshot.passes import ConjunctEffect


@dataclass(frozen=True, slots=True)
class ScanPlanSummary:
    """Totals of the table's snapshot and what of it the plan reads."""

    manifests_total: int
    manifests_kept: int
    delete_manifests_total: int
    delete_manifests_kept: int
    files_total: int | None
    files_kept: int
    row_groups_total: int | None
    row_groups_kept: int | None
    rows_total: int | None
    rows_kept: int
    bytes_total: int | None
    bytes_kept: int
    deletes_total: int | None
    deletes_kept: int
    planning_ms: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One pruning pass: how many containers it evaluated and kept, and the effect of each conjunct.

    ``unit`` names what is counted: manifests, files, row groups or pages. ``proven`` counts the kept containers in
    which every row matches.
    """

    name: str
    unit: str
    total: int
    kept: int
    proven: int
    effects: tuple[ConjunctEffect, ...]
    milliseconds: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "unit": self.unit,
            "total": self.total,
            "kept": self.kept,
            "proven": self.proven,
            "effects": [effect.to_dict() for effect in self.effects],
            "milliseconds": self.milliseconds,
        }


@dataclass(frozen=True, slots=True)
class LeafNote:
    """How one leaf of the predicate was lifted through a spec.

    ``field`` is the partition field that answers it best, if any does; ``how`` is exact, conservative or cannot.
    """

    predicate: str
    field: str | None
    how: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class SpecSummary:
    """One partition spec: its files, and how the predicate was lifted through it.

    ``recovered`` counts kept files of other specs whose tuple under the table's default spec is provable from their
    column bounds; ``None`` when it was not requested.
    """

    spec_id: int
    spec: str
    manifests_total: int
    manifests_kept: int
    files_total: int | None
    files_kept: int
    bytes_kept: int
    recovered: int | None
    notes: tuple[LeafNote, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**_plain(self), "notes": [note.to_dict() for note in self.notes]}


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """Something a reader of the plan should know; ``kind`` is stable, ``message`` is for people."""

    kind: str
    message: str
    context: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": self.kind, "message": self.message, "context": dict(self.context)}


def _plain(numbers: ScanPlanSummary | LeafNote | SpecSummary) -> dict[str, Any]:
    """Fields by name. ``asdict`` would copy each value, and every scan is reported."""
    return {field.name: getattr(numbers, field.name) for field in fields(numbers)}
