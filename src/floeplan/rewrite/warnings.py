"""Warnings for programs and people: structured, each thing said once, and never more than a reader can take."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from floeplan.scan.summary import PlanWarning

MOST_WARNINGS = 20


class WarningLog:
    """Collects warnings; one more of a kind about the same thing is not added, and beyond a limit they are counted."""

    def __init__(self, most: int = MOST_WARNINGS) -> None:
        self._most = most
        self._found: dict[tuple[str, Hashable], PlanWarning] = {}

    def add(self, kind: str, about: Hashable, message: str, context: Mapping[str, Any]) -> None:
        """Note something, unless the same kind was noted about the same thing."""
        self._found.setdefault((kind, about), PlanWarning(kind, message, context))

    def finish(self) -> tuple[PlanWarning, ...]:
        """The first warnings, and how many more there were."""
        found = tuple(self._found.values())
        if len(found) <= self._most:
            return found
        more = len(found) - self._most
        return (*found[: self._most], PlanWarning("more", f"{more} more warnings were left out", {"warnings": more}))
