"""CPU of a fresh process with compiled bytecode: help, completion, a plan of a small table, and a first `plan_scan`.

Each line is the best of several processes, which alternate with those of the peer. The peer of help and completion is
`pyiceberg --help`. A plan by the command line opens the same SQLite catalog as `pyiceberg files`, which lists the files
of the table. A first `plan_scan` from a metadata file is compared with importing `pyiceberg.table` and
`pyarrow.parquet`, the floor while Floeplan builds on PyIceberg. The last lines iterate the files of a plan of 100,000
files: their path, and twelve attributes of each.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from pyiceberg.table import Table

import floeplan as fp
from bench.results import bar_text
from tests.support.tables.two_specs import two_spec_table

PROGRAMS = Path(sys.executable).parent
WHERE = "region = 'eu' AND id >= 150"
PATTERN = "abs(id) = 150"
FILES = 100_000
IMPORTS = "import pyiceberg.table, pyarrow.parquet"
COMPLETION = {"_FLOEPLAN_COMPLETE": "complete_bash", "COMP_WORDS": "floeplan pl", "COMP_CWORD": "1"}
HELP_BAR, COMMAND_BAR, PLAN_BAR, FIRST_BAR, IMPORT_MS = 0.6, 0.7, 1.0, 1.2, 50.0
PATH_MICROS, COMMON_MICROS = 2.0, 6.0
COMMON = (
    *("path", "format", "spec_id", "partition", "record_count", "file_size", "sequence_number", "row_groups"),
    *("row_selection", "deletes", "residual", "tri_state"),
)


def run(size: str) -> list[dict[str, Any]]:
    """The size only sets how many processes are run of each."""
    processes = {"small": 5, "default": 9, "large": 15}[size]
    with tempfile.TemporaryDirectory() as folder:
        table = two_spec_table(Path(folder))
        return [*Startup(Path(folder), table, processes).rows(), *_iteration(table)]


class Startup:
    """Measures processes against each other."""

    def __init__(self, home: Path, table: Table, processes: int) -> None:
        self.metadata, self.processes = table.metadata_location, processes
        catalog = {"TYPE": "sql", "URI": f"sqlite:///{home}/catalog.db", "WAREHOUSE": home.as_uri()}
        self.environment = os.environ | {f"PYICEBERG_CATALOG__LOCAL__{key}": value for key, value in catalog.items()}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.environment |= {"FLOEPLAN_CACHE": str(home / "cache"), "FLOEPLAN_REPORTS": str(home / "reports")}

    def rows(self) -> list[dict[str, Any]]:
        program, peer = str(PROGRAMS / "floeplan"), str(PROGRAMS / "pyiceberg")
        help_ = [peer, "--help"]
        files = [peer, "--catalog", "local", "files", "db.events"]
        imports = [sys.executable, "-c", IMPORTS]
        plan = [program, "plan", "db.events", "--where"]
        return [
            self.compared("floeplan --help", [program, "--help"], "pyiceberg --help", help_, HELP_BAR),
            self.compared("floeplan -h", [program, "-h"], "pyiceberg --help", help_, HELP_BAR),
            self.compared("completion", [program], "pyiceberg --help", help_, HELP_BAR, COMPLETION),
            self.compared("floeplan plan --help", [program, "plan", "--help"], "pyiceberg --help", help_, COMMAND_BAR),
            self.compared("floeplan merge --help", [program, "merge", "-h"], "pyiceberg --help", help_, COMMAND_BAR),
            self.compared("floeplan plan --where", [*plan, WHERE], "pyiceberg files", files, PLAN_BAR),
            self.compared("floeplan plan --where, parsed by sqlglot", [*plan, PATTERN], "pyiceberg files", files, None),
            self.compared("first plan_scan", self._first("None"), "importing PyIceberg", imports, FIRST_BAR),
            self.compared(
                "first plan_scan, where", self._first(repr(WHERE)), "importing PyIceberg", imports, FIRST_BAR
            ),
            self._import(),
        ]

    def compared(
        self, case: str, ours: list[str], name: str, theirs: list[str], bar: float | None, more: Any = None
    ) -> dict[str, Any]:
        pairs = [(self.seconds(ours, more), self.seconds(theirs)) for _ in range(self.processes + 1)]
        del pairs[0]  # they compile what they import
        mine, peer = (min(column) for column in zip(*pairs, strict=True))
        shown = {"suite": "startup", "case": case, "metric": "CPU s", "ours": mine, "peer": f"{name} {peer:.3g}"}
        return shown | {"ratio": mine / peer, "bar": None if bar is None else bar_text(mine / peer, bar, "")}

    def seconds(self, command: list[str], more: Any = None) -> float:
        """CPU of one process, user and system."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=self.environment | (more or {}), stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _first(self, where: str) -> list[str]:
        return [sys.executable, "-c", f"import floeplan as fp; fp.plan_scan({self.metadata!r}, {where})"]

    def _import(self) -> dict[str, Any]:
        command = [sys.executable, "-c", "import floeplan"]
        return _alone("import floeplan", "CPU ms", min(self.seconds(command) for _ in range(9)) * 1000, IMPORT_MS)


def _iteration(table: Table) -> list[dict[str, Any]]:
    """Views of a plan, made long by repeating its files."""
    few = fp.plan_scan(table, WHERE, options=fp.ScanOptions(report=False)).files
    files = few.take(np.resize(np.arange(len(few)), FILES))
    common = attrgetter(*COMMON)
    return [
        _alone("plan.files, path", "µs a file", _micros(lambda: [file.path for file in files]), PATH_MICROS),
        _alone(
            "plan.files, 12 attributes", "µs a file", _micros(lambda: [common(file) for file in files]), COMMON_MICROS
        ),
        _alone("plan.files.to_arrow()", "µs a file", _micros(files.to_arrow), PATH_MICROS),
    ]


def _micros(action: Any) -> float:
    found = []
    for _ in range(3):
        started = time.process_time()
        action()
        found.append(time.process_time() - started)
    return min(found) / FILES * 1e6


def _alone(case: str, metric: str, ours: float, bar: float) -> dict[str, Any]:
    shown = {"suite": "startup", "case": case, "metric": metric, "ours": ours, "peer": None, "ratio": None}
    return shown | {"bar": bar_text(ours, bar)}
