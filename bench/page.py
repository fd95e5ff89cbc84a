"""docs/benchmarks.md: every suite of one size, what it missed and lost first, and how to repeat it."""

from __future__ import annotations

import ast

from bench.results import HERE, Row, SuiteResult, machine_text, markdown, verdict

PAGE = HERE.parent / "docs" / "benchmarks.md"


def write_page(results: list[SuiteResult]) -> None:
    PAGE.write_text(page(results))


def page(results: list[SuiteResult]) -> str:
    size = results[0].size
    parts = [
        "# Benchmarks",
        "Written by `make bench`; nothing here is typed. `ratio` is Floeplan's figure over the peer's, so less is "
        "better and 1 is a draw; `bar` is what it must not exceed, and whether it did. CPU seconds are of all "
        "processes and all cores, the JVM and Spark's Python workers included. "
        f"Size: {size}. `make bench SIZE=large` measures the real thing, `make bench-check` compares with the ratios "
        "that are committed.",
        f"Measured on {machine_text(results[0].machine)}",
        "## In short",
        markdown([_short(result) for result in results], ("suite", "bars met", "bars missed", "ahead", "behind")),
        "## Bars missed, and other losses",
        "Everything that missed its bar, or where a peer did better, the worst first.",
        markdown(_losses(results), ("suite", "case", "metric", "ours", "peer", "ratio", "bar")),
    ]
    for result in results:
        parts += [f"## {result.suite}", _about(result.suite), markdown(result.rows)]
    return "\n\n".join(parts) + "\n"


def _short(result: SuiteResult) -> Row:
    verdicts = [verdict(row) for row in result.rows]
    ratios = list(result.ratios().values())
    return {
        "suite": result.suite,
        "bars met": verdicts.count("met"),
        "bars missed": verdicts.count("missed"),
        "ahead": sum(ratio < 1 for ratio in ratios),
        "behind": sum(ratio > 1 for ratio in ratios),
    }


def _losses(results: list[SuiteResult]) -> list[Row]:
    rows = [row | {"suite": result.suite} for result in results for row in result.rows]
    lost = [row for row in rows if verdict(row) == "missed" or (row.get("ratio") or 0) > 1]
    return sorted(lost, key=lambda row: (verdict(row) != "missed", -(row.get("ratio") or 0)))


def _about(suite: str) -> str:
    return ast.get_docstring(ast.parse((HERE / f"bench_{suite}.py").read_text())) or ""
