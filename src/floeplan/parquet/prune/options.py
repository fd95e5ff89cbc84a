"""What pruning may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PruneOptions:
    """What pruning may use and what it returns."""

    page_index: bool = True
    """Read column and offset indexes of the row groups that statistics leave undecided."""
    bloom_filter: bool = True
    """Probe Bloom filters for equality and IN in the row groups that statistics leave undecided."""
    emit_roaring: bool = False
    """Also return the selected rows as a Roaring bitmap."""
    case_sensitive: bool = True
    """Whether column names in the predicate must match exactly."""
