"""Results of a suite as JSON: rows, machine and versions; rows have names that do not change between runs."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts.fetch_jars import COORDINATES

HERE = Path(__file__).parent
FOLDER = HERE / "results"
COLUMNS = ("case", "metric", "ours", "peer", "ratio", "bar")
PACKAGES = ("floeplan", "pyiceberg", "pyarrow", "numpy", "pyspark", "polars", "duckdb", "datafusion")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One run of one suite.

    Attributes:
        suite: The name of the suite.
        size: The size of the run.
        rows: ``case, metric, ours, peer, ratio, bar`` each.
        machine: Cores, memory and versions.
        seconds: The total time, including peers and creating tables.
        measured: The date, as ``2026-11-16``.
    """

    suite: str
    size: str
    rows: list[Row]
    machine: dict[str, Any]
    seconds: float
    measured: str = ""

    def save(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        text = json.dumps(asdict(self), indent=1, default=_plain) + "\n"
        (FOLDER / f"{self.suite}-{self.size}.json").write_text(text)

    @classmethod
    def load(cls, suite: str, size: str) -> SuiteResult | None:
        path = FOLDER / f"{suite}-{size}.json"
        if not path.exists():
            return None
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
        return cls(**{"measured": written} | json.loads(path.read_text()))

    def ratios(self) -> dict[str, float]:
        """The ratios as shown, by row name."""
        return {row_name(row): float(cell(float(row["ratio"]))) for row in self.rows if row.get("ratio") is not None}


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "processor": _processor(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "versions": {package: metadata.version(package) for package in PACKAGES} | {"Iceberg": _iceberg()},
    }


def machine_text(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    return (
        f"{found['cores']} cores ({found['processor']}, {found['architecture']}), {found['memory_gib']} GiB of memory; "
        f"Python {found['python']}, {versions}."
    )


def _iceberg() -> str:
    """The version of Iceberg's Spark runtime."""
    return next(name.split(":")[2] for name in COORDINATES if "iceberg-spark-runtime" in name)


def _processor() -> str:
    """The CPU model, if the system reports it."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return named.group(1).strip() if named else "processor unknown"


def row_name(row: Row) -> str:
    """Case, metric and peer, without measured numbers."""
    case = re.sub(r" \([^)]*\d[^)]*\)", "", str(row["case"]))
    peer = re.match(r"[A-Za-z][A-Za-z ]*[A-Za-z]", str(row.get("peer") or ""))
    return " | ".join((case, str(row["metric"]), peer.group() if peer else ""))


def bar_text(value: float, most: float, of: str = "ours ") -> str:
    """The limit of a value, and whether it is met."""
    return f"{of}≤ {most:g} {'met' if value <= most else 'MISSED'}"


def verdict(row: Row) -> str | None:
    """``met`` or ``missed``, if the row has a bar."""
    words = re.findall(r"\b(met|ok|missed)\b", str(row.get("bar") or "").lower())
    return None if not words else "missed" if "missed" in words else "met"


def is_floor(row: Row) -> bool:
    """Whether the row measures a lower limit of any implementation, not Floeplan."""
    return "(floor)" in str(row["case"])


def with_floors(rows: list[Row]) -> list[Row]:
    """The rows that are not floors, each with the lowest of its floors (``floor``) and whether its bar is below that
    floor (``beyond_reach``).

    A floor belongs to the last row before it that has a bar and the same metric.
    """
    found: list[Row] = []
    for row in rows:
        if not is_floor(row):
            found.append(dict(row))
            continue
        mine = next((r for r in reversed(found) if verdict(r) and r["metric"] == row["metric"]), None)
        if mine is not None:
            floor, most = _held(row, mine), _most(mine)
            mine["floor"] = min(floor, mine.get("floor", floor))
            mine["beyond_reach"] = most is not None and mine["floor"] > most
    return found


def _held(row: Row, barred: Row) -> float:
    """The value that the bar limits: the ratio, or ours."""
    return float(row["ours"] if str(barred["bar"]).startswith("ours") else row["ratio"])


def _most(row: Row) -> float | None:
    """The limit of the row's bar."""
    found = re.search(r"≤ ([\d,.]*\d)", str(row["bar"]))
    return None if found is None else float(found[1].replace(",", ""))


def stated(rows: list[Row]) -> list[Row]:
    """The rows of a suite, after checking that every bar has a verdict and every ratio a unique name."""
    silent = [row for row in rows if row.get("bar") and verdict(row) is None]
    names = [row_name(row) for row in rows if row.get("ratio") is not None]
    twice = {name for name in names if names.count(name) > 1}
    if silent or twice:
        raise ValueError(f"bars that do not say met or missed: {silent}; ratios of one name: {sorted(twice)}")
    return rows


def markdown(rows: Iterable[Row], columns: Iterable[str] = COLUMNS) -> str:
    names = tuple(columns)
    head = f"| {' | '.join(names)} |\n|{'---|' * len(names)}"
    return "\n".join([head, *(f"| {' | '.join(cell(row.get(name)) for name in names)} |" for row in rows)])


def cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "\\|")


def _plain(value: Any) -> Any:
    """NumPy numbers as Python numbers."""
    return value.item()
