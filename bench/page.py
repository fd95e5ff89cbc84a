"""docs/benchmarks.md: every suite of one size, what it missed and lost first, and how to repeat it."""

from __future__ import annotations

import ast
import re

from bench.picture import PICTURE, compared, picture
from bench.results import HERE, Row, SuiteResult, machine_text, markdown, verdict, with_floors

PAGE = HERE.parent / "docs" / "benchmarks.md"
LOSSES = ("suite", "case", "metric", "ours", "peer", "ratio", "bar")
SHORT = ("suite", "size", "measured", "bars met", "bars missed", "beyond reach", "ahead", "behind", "s")


def write_page(results: list[SuiteResult]) -> None:
    PAGE.write_text(page(results))
    PICTURE.write_text(picture(results))


def page(results: list[SuiteResult]) -> str:
    missed, behind = _losses(results)
    parts = [
        "---\nhide: [toc]\n---",  # the room is for tables
        "# Benchmarks",
        "Floeplan against the tools that are used now, on the same files and on the same machine. This page is written "
        "by `make bench`; nothing on it is typed. A *ratio* is Floeplan's figure over the peer's: less is better, and "
        "1 is a draw. A *bar* is what must not be exceeded, and says whether it is. CPU seconds are of all processes "
        "and all cores, the JVM and Spark's Python workers included.",
        _verdicts(results, missed),
        f"Size {results[0].size}. Bars are set for `SIZE=default` and `SIZE=large`: on small tables what a "
        "query costs before it reads anything weighs more, on either side. `make bench-check` compares with the ratios "
        f"that are committed. All of it took {sum(result.seconds for result in results) / 60:.0f} minutes on "
        f"{machine_text(results[0].machine)}",
        "## In short",
        f"![Every ratio as a dot, a line a suite](images/{PICTURE.name})",
        markdown([_short(result) for result in results], SHORT),
        "*Beyond reach* are missed bars below a floor that the suite measured beside them, in the same run; what the "
        "floor stands for is said with the suite. *Ahead* and *behind* count ratios to a peer under and over 1, "
        "whether they have a bar or not; *s* is how long the suite took, peers and making its tables included.",
        "## Bars missed",
        markdown(missed, (*LOSSES, "floor")) if missed else "None.",
        "## Where a peer did better",
        "Of the figures that have no bar, or a bar above 1; the worst first.",
        markdown(behind, LOSSES) if behind else "Nowhere.",
    ]
    for result in results:
        parts += [f"## {result.suite}", _about(result.suite), markdown([_plain(row) for row in result.rows])]
    return "\n\n".join(parts) + "\n"


def _verdicts(results: list[SuiteResult], missed: list[Row]) -> str:
    """How many bars are missed, and of which of them that was to be expected."""
    bars = sum(verdict(row) is not None for result in results for row in result.rows)
    beyond = sum(bool(row.get("beyond_reach")) for row in missed)
    if not missed:
        return f"**All {bars} bars are met.**"
    reach = f"{beyond} of these beyond reach, below the floor that their suite measured" if beyond else "all in reach"
    return f"**{len(missed)} of {bars} bars [are missed](#bars-missed), {reach}.**"


def _short(result: SuiteResult) -> Row:
    verdicts = [verdict(row) for row in result.rows]
    ratios = [float(row["ratio"]) for row in compared(result.rows)]
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
    """What missed its bar, and what lost otherwise."""
    rows = [_plain(row) | {"suite": result.suite} for result in results for row in with_floors(result.rows)]
    rows.sort(key=lambda row: -(row.get("ratio") or 0))
    missed = [row | {"floor": _floor(row)} for row in rows if verdict(row) == "missed"]
    return missed, [row for row in compared(rows) if row["ratio"] > 1 and verdict(row) != "missed"]


def _is_beyond_reach(row: Row) -> bool:
    return verdict(row) == "missed" and bool(row.get("beyond_reach"))


def _floor(row: Row) -> str | None:
    if "floor" not in row:
        return None
    return f"{row['floor']:.3g}" + (", above the bar" if row["beyond_reach"] else "")


def _plain(row: Row) -> Row:
    """All bars in the same words."""
    words = {"met": "met", "ok": "met", "missed": "**missed**"}
    text = re.sub(r"\b(met|ok|missed)\b", lambda found: words[found[1].lower()], str(row.get("bar") or ""), flags=re.I)
    return row | {"bar": text}


def _about(suite: str) -> str:
    return ast.get_docstring(ast.parse((HERE / f"bench_{suite}.py").read_text())) or ""
