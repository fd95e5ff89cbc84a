"""Package docstrings name every module of their package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

SOURCE = Path(__file__).resolve().parents[2] / "src" / "floeplan"
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(SOURCE)))
def test_a_package_docstring_names_every_module(package: Path) -> None:
    essay = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    inner = {path.parent.name for path in package.glob("*/__init__.py")}
    assert {name for name in modules | inner if f"``{name}``" not in essay} == set()
