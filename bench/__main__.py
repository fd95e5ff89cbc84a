"""`python -m bench [SUITE …] [--size small|default|large]`: run suites, print their tables and keep them in results/.

A suite is a module `bench_<name>.py` with `run(size) -> list[dict]`. Every row says `suite, case, metric, ours, peer,
ratio, bar`; `ratio` is ours over the peer's, and `bar` what it (or ours, where there is no peer) must not exceed.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import platform
from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COLUMNS = ("case", "metric", "ours", "peer", "ratio", "bar")
PACKAGES = ("floeplan", "pyarrow", "polars", "duckdb", "datafusion", "pyiceberg", "numpy")


def main() -> None:
    suites = [name.removeprefix("bench_") for _, name, _ in pkgutil.iter_modules([str(HERE)]) if name[:6] == "bench_"]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Floeplan against other tools.")
    parser.add_argument("suite", nargs="*", help=f"{', '.join(suites)}; all of them by default")
    parser.add_argument("--size", choices=("small", "default", "large"), default="default")
    arguments = parser.parse_args()
    if unknown := set(arguments.suite) - set(suites):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suites)}")
    for name in arguments.suite or suites:
        rows = import_module(f"bench.bench_{name}").run(arguments.size)
        report = f"# {name} ({arguments.size})\n\n{machine()}\n\n{markdown(rows)}\n"
        print(report, flush=True)
        target = HERE / "results" / f"{name}-{arguments.size}.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(report)


def machine() -> str:
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in PACKAGES)
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; {versions}."


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    return "\n".join([head, *(f"| {' | '.join(_cell(row.get(column)) for column in COLUMNS)} |" for row in rows)])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value)


if __name__ == "__main__":
    main()
