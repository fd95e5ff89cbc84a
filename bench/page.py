"""Writes docs/benchmarks.md: all suites of one size, with missed bars and losses first.

The page is the record of its results: a run of some suites replaces their rows and reads those of the others from it.
"""

from __future__ import annotations

import ast
import re

from bench.picture import PICTURE, compared, picture
from bench.results import COLUMNS, HERE, Row, SuiteResult, cell, machine_text, markdown, verdict, with_floors
from bench.v4_picture import write_pictures

PAGE = HERE.parent / "docs" / "benchmarks.md"
LOSSES = ("suite", "case", "metric", "ours", "peer", "ratio", "bar")
SHORT = ("suite", "size", "measured", "bars met", "bars missed", "beyond reach", "ahead", "behind", "s")


def write_page(measured: list[SuiteResult]) -> None:
    """Write the page and its pictures; suites that were not measured stay as they are on it."""
    found = {result.suite: result for result in [*published(), *measured] if result.size == measured[0].size}
    results = [found[suite] for suite in sorted(found)]
    PAGE.write_text(page(results, machine_text(measured[0].machine)))
    PICTURE.write_text(picture(results))
    for result in measured:
        if result.suite == "v4":
            write_pictures(result)


def published() -> list[SuiteResult]:
    """The results that the page shows, without the machine; none without a page."""
    text = PAGE.read_text() if PAGE.exists() else ""
    listed = re.findall(r"^\| \[(\w+)\]\(#\w+\) \| (\w+) \| ([\d-]+) \|.*\| (\d+) \|$", text, re.MULTILINE)
    return [
        SuiteResult(suite, size, _rows_shown(text, suite), {}, float(seconds), day)
        for suite, size, day, seconds in listed
    ]


def published_size() -> str | None:
    """The size of the suites on the page."""
    return next((result.size for result in published()), None)


def page(results: list[SuiteResult], machine: str) -> str:
    missed, behind = _losses(results)
    parts = [
        "---\nhide: [toc]\n---",  # leaves room for the tables
        "# Benchmarks",
        "Floeplan compared with other tools, on the same files and the same machine. `make bench` generates "
        "this page. A *ratio* is Floeplan's value divided by the peer's: lower is better. A *bar* is a limit, "
        "and each row shows whether it is met. CPU seconds include all processes and cores, with the JVM and "
        "Spark's Python workers.",
        _verdicts(results, missed),
        f"Size {results[0].size}. Bars are set for `SIZE=default` and `SIZE=large`: on small tables, the "
        "fixed costs of a query weigh more, on both sides. `make bench-check` compares with the ratios "
        f"in `bench/ratios.json`. All suites took {sum(result.seconds for result in results) / 60:.0f} minutes on "
        f"{machine}",
        "## Summary",
        f"![All ratios as dots, one line per suite](images/{PICTURE.name})",
        markdown([_short(result) for result in results], SHORT),
        "*Beyond reach* counts missed bars that lie below a floor measured in the same run; each suite "
        "explains its floor. *Ahead* and *behind* count ratios to a peer below and above 1, with or without a "
        "bar. *s* is the duration of the suite, including peers and the creation of its tables.",
        "## Bars missed",
        markdown(missed, (*LOSSES, "floor")) if missed else "None.",
        "## Where a peer is better",
        "Ratios above 1 without a missed bar, worst first.",
        markdown(behind, LOSSES) if behind else "None.",
    ]
    for result in results:
        parts += [f"## {result.suite}", _about(result.suite), markdown([_plain(row) for row in result.rows])]
    return "\n\n".join(parts) + "\n"


def _rows_shown(text: str, suite: str) -> list[Row]:
    """The table of a suite, as the page has it."""
    section = text.split(f"\n## {suite}\n")[1].split("\n## ")[0]
    _, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = []
    for line in lines:
        cells = [cell.strip().replace("\\|", "|") or None for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        row: Row = dict(zip(COLUMNS, cells, strict=True))
        bar, ratio = row["bar"], row["ratio"]
        rows.append(row | {"bar": bar and bar.replace("**", ""), "ratio": ratio and float(ratio)})
    return rows


def _verdicts(results: list[SuiteResult], missed: list[Row]) -> str:
    """The number of missed bars, and how many of them are beyond reach."""
    bars = sum(verdict(row) is not None for result in results for row in result.rows)
    beyond = sum(bool(row.get("beyond_reach")) for row in missed)
    if not missed:
        return f"**All {bars} bars are met.**"
    reach = f"{beyond} of these beyond reach (below the measured floor)" if beyond else "none beyond reach"
    return f"**{len(missed)} of {bars} bars [missed](#bars-missed), {reach}.**"


def _short(result: SuiteResult) -> Row:
    verdicts = [verdict(row) for row in result.rows]
    ratios = [_ratio(row) for row in compared(result.rows)]
    return {
        "suite": f"[{result.suite}](#{result.suite})",
        "size": result.size,
        "measured": result.measured,
        "bars met": verdicts.count("met"),
        "bars missed": verdicts.count("missed"),
        "beyond reach": sum(_is_beyond_reach(row) for row in with_floors(result.rows)),
        "ahead": sum(ratio < 1 for ratio in ratios),
        "behind": sum(ratio > 1 for ratio in ratios),
        "s": round(result.seconds),
    }


def _losses(results: list[SuiteResult]) -> tuple[list[Row], list[Row]]:
    """Rows that missed their bar, and other rows in which the peer is better."""
    rows = [_plain(row) | {"suite": result.suite} for result in results for row in with_floors(result.rows)]
    rows.sort(key=lambda row: -_ratio(row))
    missed = [row | {"floor": _floor(row)} for row in rows if verdict(row) == "missed"]
    return missed, [row for row in compared(rows) if _ratio(row) > 1 and verdict(row) != "missed"]


def _ratio(row: Row) -> float:
    """The ratio as shown, so that rows read from the page count and sort like measured ones."""
    return float(cell(float(row.get("ratio") or 0)))


def _is_beyond_reach(row: Row) -> bool:
    return verdict(row) == "missed" and bool(row.get("beyond_reach"))


def _floor(row: Row) -> str | None:
    if "floor" not in row:
        return None
    return f"{row['floor']:.3g}" + (", above the bar" if row["beyond_reach"] else "")


def _plain(row: Row) -> Row:
    """The bar of a row in uniform wording."""
    words = {"met": "met", "ok": "met", "missed": "**missed**"}
    text = re.sub(r"\b(met|ok|missed)\b", lambda found: words[found[1].lower()], str(row.get("bar") or ""), flags=re.I)
    return row | {"bar": text}


def _about(suite: str) -> str:
    return ast.get_docstring(ast.parse((HERE / f"bench_{suite}.py").read_text())) or ""
