"""The runtime dependencies are those that the package imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
IMPORTED_BY_NAME = {"cffi"}
"""``zstandard._cffi``, which ``parquet.pages.zstd`` imports, needs it; ``zstandard`` itself does not."""

CONSUMERS = {"datafusion", "duckdb", "pandas", "polars"}
"""Libraries that take the rows of a plan (`to_polars`, …): whoever calls these methods has them installed."""


def imported() -> set[str]:
    """Top-level modules of other projects that ``src`` imports, including lazy and typing imports."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"floeplan"}


def declared(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", requirement)[0].lower() for requirement in requirements}


def test_runtime_dependencies_are_those_that_the_package_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    owners = packages_distributions()
    used = {owners[module][0].lower() for module in imported()}
    extras = {name: declared(requirements) for name, requirements in project["optional-dependencies"].items()}
    assert extras["spark"] == {"pyspark"}
    assert extras["server"] == {"cryptography", "httpx", "starlette", "uvicorn", "uvloop"}, "uvicorn imports uvloop"
    assert declared(project["dependencies"]) - IMPORTED_BY_NAME == used - CONSUMERS - set().union(*extras.values())
