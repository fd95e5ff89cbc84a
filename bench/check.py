"""`make bench-check`: compares the ratios of this run with ratios.json.

Rule: a row is worse if its ratio exceeds the committed one by more than the noise of its metric. A suite with such a
row runs once more, and only rows that are worse both times count. A committed row that is no longer measured counts
as worse, and so does a suite without committed ratios for the size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from bench.results import HERE, SuiteResult

RATIOS = HERE / "ratios.json"
EXACT, MEMORY, CPU, WALL = 1.02, 1.25, 1.35, 1.6
"""How much a ratio may grow: counts and bytes do not vary; memory, CPU and wall time vary increasingly."""

Ratios = dict[str, float]


def tolerance(name: str) -> float:
    words = set(re.findall(r"\w+", name.split(" | ")[1].lower()))
    if "wall" in words:
        return WALL
    if words & {"cpu", "s", "ms", "µs"}:
        return CPU
    return MEMORY if "mb" in words else EXACT


def worse(old: Ratios, new: Ratios) -> dict[str, str]:
    """Rows that have become worse, with both figures."""
    found = dict.fromkeys(old.keys() - new.keys(), "no longer measured")
    for name in old.keys() & new.keys():
        if new[name] > old[name] * tolerance(name):
            found[name] = f"{old[name]:.3g} → {new[name]:.3g} (allowed ×{tolerance(name):g})"
    return dict(sorted(found.items()))


def check(result: SuiteResult, again: Callable[[], SuiteResult]) -> dict[str, str]:
    """Rows of a suite that are worse than the committed ones."""
    key = f"{result.suite}-{result.size}"
    old = committed().get(key)
    if old is None:
        return {key: "no ratios of it are committed; `make bench` writes them"}
    found = worse(old, result.ratios())
    if not found:
        return {}
    still = worse(old, again().ratios())
    return {name: text for name, text in found.items() if name in still}


def accept(results: list[SuiteResult]) -> None:
    """Write the ratios of these results to ratios.json; those of other suites and sizes stay."""
    kept = committed() | {f"{result.suite}-{result.size}": result.ratios() for result in results}
    RATIOS.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def committed() -> dict[str, Ratios]:
    return json.loads(RATIOS.read_text()) if RATIOS.exists() else {}
