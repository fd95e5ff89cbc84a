"""Run the cells of notebooks and store what they print and return; `--check` compares instead.

Times, ids, sizes and temporary paths differ between runs: they are masked in what is stored and in what is compared.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_MASKS = (
    (re.compile(r"(file://)?/\S*floeplan-notebook-\w+"), "/tmp/notebook"),
    (re.compile(r"\d+(\.\d+)? ms\b"), "… ms"),
    (re.compile(r"\b\d{15,}\b"), "…"),
    (re.compile(r"\d+(\.\d+)? [KMG]iB"), "… KiB"),
    (re.compile(r"0x[0-9a-f]+"), "0x…"),
)


def masked(text: str) -> str:
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def run_cells(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, as Jupyter stores them."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for number, cell in enumerate((one for one in notebook["cells"] if one["cell_type"] == "code"), 1):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"cell {number}", "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
        found.append(_outputs(number, printed.getvalue(), value))
    return found


def _outputs(number: int, printed: str, value: object) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed)})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        result = {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        outputs.append(result)
    return outputs


def _lines(text: str) -> list[str]:
    return masked(text).splitlines(keepends=True)


def differences(path: Path) -> list[str]:
    """What is printed or returned differently from what is stored."""
    notebook = json.loads(path.read_text())
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    pairs = enumerate(zip(stored, run_cells(notebook), strict=True), 1)
    return [f"cell {number}: {was} is now {now}" for number, (was, now) in pairs if was != now]


def store(path: Path) -> None:
    """Run the cells and store their outputs."""
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(cells, run_cells(notebook), strict=True), 1):
        cell["outputs"], cell["execution_count"] = outputs, number
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    for one in sorted(EXAMPLES.glob("*.ipynb")):
        if "--check" not in sys.argv:
            store(one)
        elif changed := differences(one):
            sys.exit("\n".join([f"{one.name}: run scripts/notebook.py", *changed]))
