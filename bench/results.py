"""What a suite measured, kept as JSON: rows, the machine and the versions; and rows by a name that outlasts a run."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
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
        suite: Its name.
        size: How much it measured.
        rows: ``case, metric, ours, peer, ratio, bar`` each.
        machine: Cores, memory and versions.
        seconds: How long all of it took, peers and making of tables included.
    """

    suite: str
    size: str
    rows: list[Row]
    machine: dict[str, Any]
    seconds: float

    def save(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        text = json.dumps(asdict(self), indent=1, default=_plain) + "\n"
        (FOLDER / f"{self.suite}-{self.size}.json").write_text(text)

    @classmethod
    def load(cls, suite: str, size: str) -> SuiteResult | None:
        path = FOLDER / f"{suite}-{size}.json"
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def ratios(self) -> dict[str, float]:
        """The ratios, as they are shown, by a name that does not change from run to run."""
        return {row_name(row): float(_cell(float(row["ratio"]))) for row in self.rows if row.get("ratio") is not None}


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
    """The version of the runtime for Spark, which Iceberg's figures are of."""
    return next(name.split(":")[2] for name in COORDINATES if "iceberg-spark-runtime" in name)


def _processor() -> str:
    """Its model, where the system tells."""
    told = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", told.read_text() if told.exists() else "", re.MULTILINE)
    return named.group(1).strip() if named else "processor unknown"


def row_name(row: Row) -> str:
    """Case, metric and peer, without what was measured in them."""
    case = re.sub(r" \([^)]*\d[^)]*\)", "", str(row["case"]))
    peer = re.match(r"[A-Za-z][A-Za-z ]*[A-Za-z]", str(row.get("peer") or ""))
    return " | ".join((case, str(row["metric"]), peer.group() if peer else ""))


def bar_text(value: float, most: float, of: str = "ours ") -> str:
    """What must not be exceeded, and whether it is."""
    return f"{of}≤ {most:g} {'met' if value <= most else 'MISSED'}"


def verdict(row: Row) -> str | None:
    """Whether the row's bar is ``met`` or ``missed``, where it has one that says so."""
    words = re.findall(r"\b(met|ok|missed)\b", str(row.get("bar") or "").lower())
    return None if not words else "missed" if "missed" in words else "met"


def stated(rows: list[Row]) -> list[Row]:
    """The rows of a suite, in which every bar says whether it is met and no two ratios share a name."""
    silent = [row for row in rows if row.get("bar") and verdict(row) is None]
    names = [row_name(row) for row in rows if row.get("ratio") is not None]
    twice = {name for name in names if names.count(name) > 1}
    if silent or twice:
        raise ValueError(f"bars that do not say met or missed: {silent}; ratios of one name: {sorted(twice)}")
    return rows


def markdown(rows: Iterable[Row], columns: Iterable[str] = COLUMNS) -> str:
    names = tuple(columns)
    head = f"| {' | '.join(names)} |\n|{'---|' * len(names)}"
    return "\n".join([head, *(f"| {' | '.join(_cell(row.get(name)) for name in names)} |" for row in rows)])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "\\|")


def _plain(value: Any) -> Any:
    """Numbers of NumPy."""
    return value.item()
