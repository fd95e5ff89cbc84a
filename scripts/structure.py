"""Print structure metrics: modules, lines of code, small modules, and the modules a command runs through.

A line of code is a line that is not blank, a comment or a docstring. A command runs through a module when it calls one
of its functions; imports do not count. `--check` exits with 1 when a number is above its limit.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import os
import sys
import tempfile
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
SMALL = 60
ADDED = {
    "planning server": (18, 2_880),
    "start-up, views of files and streams": (0, 550),
    "format 4": (0, 560),
    "tables of other engines": (0, 600),
    "why, explain and advice": (0, 700),
    "ORC and Avro files, metadata columns, table folders": (8, 950),
    "queries on Spark": (3, 700),
    "metadata tree of the v4 draft": (13, 2_290),
    "maintain": (10, 1_700),
    "procedures, new tables, commands of tables, completion and interrupts": (7, 1_640),
    "late columns and dictionaries in local reads": (1, 190),
    "cherrypick, rewrite-deletes, append --create, changes beside streaming writers": (4, 600),
    "fewer requests to S3": (1, 90),
    "shredded variants": (1, 170),
    "ranges of sorted groups on Spark": (5, 900),
    "writing variants, geometries and geographies; metadata columns in queries": (0, 260),
    "pages of plans that are written before they are fetched": (0, 40),
    "bounds of manifests, float partitions and zeros in the planning server": (0, 220),
    "cherry-picked overwrites, interrupts between tasks and commit": (1, 150),
    "a compiled decoder of flat columns, counts without data files": (0, 300),
    "ORC and Avro files that tables ask for": (2, 430),
    "queries pruned by the join keys of small tables": (2, 350),
    "advice that is gone once followed, and what waits": (0, 110),
    "bad input that every command names before it starts, quiet JVMs, procedures in notebooks": (0, 160),
    "what plans of one snapshot share, metrics of many files at once": (0, 520),
    "requests to S3 without threads, footers evaluated at once, counts by dictionaries": (0, 270),
    "late equality deletes as evidence, deletes of other partitions in changes": (0, 40),
    "stripe statistics of all types that can be trusted, conditions on all metadata columns": (0, 100),
    "conditions on variants and boxes of geometries, bounds of variants, variants on Spark": (4, 680),
    "delete files replaced together by vectors, tables within tables, gaps in snapshot logs": (0, 32),
    "policies: cycles, all errors at once, columns that a table does not have": (0, 80),
    "changelog views": (1, 125),
    "deletes fetched from S3 beside data files, kernels of filters on text": (0, 70),
    "bad input of policies, statements and ages, completion of names": (0, 145),
    "locations, purges and paths that the planning server checks": (0, 40),
    "plans of rewrites and doctor in less memory": (0, 30),
    "late deletes after rewrites of other engines, names of compressed metadata": (0, 20),
    "writers of equality deletes whose snapshots have expired, rewrites that hide doubled rows": (0, 35),
    "pages of one plan only, nulls in residuals, malformed bodies and TLS files in the planning server": (0, 85),
    "metadata that several queries share, columns decoded by threads that exist": (0, 25),
    "deleted rows as a finding, tables of audit that are refused before Spark starts": (0, 80),
    "far and local timestamps of ORC files, statistics files and defaults of other engines": (1, 210),
    "wide rows as text, pages of few files from lists of members, memory that decoders keep": (0, 90),
    "conjuncts, answers of entries and located manifests kept between plans of the planning server": (0, 95),
    "memory that decoded columns use again": (1, 115),
}
"""Modules and lines of capabilities added since the restructuring; each raised the limits in the change that added it.
Those without modules of their own fit into the 280 modules of the restructuring.
"""
LIMITS = {
    "modules": 280 + sum(modules for modules, _ in ADDED.values()),
    "lines of code": 33_000 + sum(lines for _, lines in ADDED.values()),
    f"modules under {SMALL} lines with one importer": 10,
    "modules in the largest folder": 16,
    "modules that `delete` runs through": 80,
    "modules that `rewrite --strategy zorder` runs through": 90,
}
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def lines_of_code(path: Path) -> int:
    text = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def importers(known: dict[str, Path]) -> dict[str, set[str]]:
    """The importers of each module, including lazy and typing imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[inner if inner in known else node.module].add(name)
    return found


class Trace:
    """Counts the modules of Floeplan whose functions run, and the calls between packages."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.switches = 0
        self._names: dict[CodeType, str | None] = {}
        self._package = threading.local()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = self._module(frame)
        name = self._names[code]
        if name is None:
            return
        self.modules.add(name)
        package = name.split(".")[1]
        if getattr(self._package, "name", package) != package:
            self.switches += 1
        self._package.name = package

    @staticmethod
    def _module(frame: FrameType) -> str | None:
        """The module of a function; bodies of modules and classes run when they are imported and do not count."""
        name = str(frame.f_globals.get("__name__", ""))
        is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
        return name if is_function and name.startswith("floeplan.") else None


def traced_commands() -> dict[str, Trace]:
    """Run a delete and a Z-order rewrite on a small table whose spec has evolved."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ |= {"FLOEPLAN_HOME": folder, "FLOEPLAN_REPORTS": folder, "FLOEPLAN_CACHE": f"{folder}/cache"}
        traces = {}
        for arguments in (
            ["delete", "db.{}", "--where", "id = 4 AND region = 'eu' AND ts < TIMESTAMP '2024-01-03 00:00:00'"],
            ["rewrite", "db.{}", "--strategy", "zorder", "--by", "id,region", "--option", "rewrite-all=true"],
        ):
            for table in ("untraced", "traced"):  # the first run imports everything
                name = f"{arguments[0]}_{table}"
                _evolved_table(name)
                trace = Trace()
                with trace.running(), contextlib.redirect_stdout(io.StringIO()):
                    _run([argument.format(name) for argument in arguments])
                traces[arguments[0]] = trace
        return traces


def _run(arguments: list[str]) -> None:
    from floeplan.cli.main import main

    if code := main(arguments):
        raise SystemExit(f"floeplan {' '.join(arguments)} ended with {code}")


def _evolved_table(name: str) -> None:
    """A table with two partition specs that both have files."""
    from datetime import UTC, datetime, timedelta

    import pyarrow as pa
    from pyiceberg.transforms import DayTransform

    import floeplan as fp
    from floeplan.catalog import open_catalog

    catalog = open_catalog(None)
    catalog.create_namespace_if_not_exists("db")
    start = datetime(2024, 1, 1, tzinfo=UTC)
    columns = {
        "id": pa.array(range(100), pa.int64()),
        "region": pa.array(["eu", "us"] * 50),
        "ts": pa.array([start + timedelta(hours=hour) for hour in range(100)], pa.timestamp("us", "UTC")),
    }
    rows = pa.table(columns)
    modes = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}
    table = catalog.create_table(f"db.{name}", rows.schema, properties=modes)
    fp.append(table, rows)
    with table.update_spec() as update:
        update.add_identity("region")
        update.add_field("ts", DayTransform())
    fp.append(table, rows)


def numbers() -> dict[str, int]:
    known = modules()
    traces = traced_commands()
    importing = importers(known)
    small = [
        name
        for name, path in known.items()
        if len(importing[name]) == 1 and lines_of_code(path) < SMALL and path.name != "__init__.py"
    ]
    folders = Counter(path.parent for path in known.values())
    return {
        "modules": len(known),
        "lines of code": sum(map(lines_of_code, known.values())),
        f"modules under {SMALL} lines with one importer": len(small),
        "modules in the largest folder": max(folders.values()),
        "modules that `delete` runs through": len(traces["delete"].modules),
        "package switches of `delete`": traces["delete"].switches,
        "modules that `rewrite --strategy zorder` runs through": len(traces["rewrite"].modules),
        "package switches of `rewrite --strategy zorder`": traces["rewrite"].switches,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a number is above its limit")
    check = parser.parse_args().check
    over = False
    print("| | now | limit |\n|---|---|---|")
    for name, number in numbers().items():
        limit = LIMITS.get(name)
        over |= limit is not None and number > limit
        print(f"| {name} | {number:,} | {'' if limit is None else f'{limit:,}'} |")
    return int(check and over)


if __name__ == "__main__":
    sys.exit(main())
