"""Package docstrings name every module of their package, and the map of the architecture only what exists."""

from __future__ import annotations

import ast
import re
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


def test_the_map_of_the_architecture_names_what_exists() -> None:
    rows = (SOURCE.parents[1] / "docs" / "architecture.md").read_text().split("## Where to look\n")[1].split("\n## ")[0]
    for row in rows.strip().splitlines()[2:]:
        modules, names = (re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[2:4])
        code = "".join((SOURCE / module).read_text() for module in modules)
        assert names, row
        missing = [name for name in names if not re.search(rf"^(def|class) {name}\b", code, re.MULTILINE)]
        assert not missing, row
