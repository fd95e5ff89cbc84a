"""`python -m bench [SUITE …] [--size small|default|large]`: measure Floeplan against other tools.

Every suite prints its table and keeps what it measured in results/. When all suites have been measured at a size, the
page of the documents is written from it. `--check` compares with the committed ratios, `--accept` commits to these.

A suite is a module `bench_<name>.py` with `run(size) -> list[dict]`. Every row says `suite, case, metric, ours, peer,
ratio, bar`; `ratio` is ours over the peer's, and `bar` what it (or ours, where there is no peer) must not exceed.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
import time
from importlib import import_module

from bench.check import accept, check
from bench.page import PAGE, write_page
from bench.results import HERE, SuiteResult, machine, machine_text, markdown

SIZES = ("small", "default", "large")


def main() -> int:
    suites = [name.removeprefix("bench_") for _, name, _ in pkgutil.iter_modules([str(HERE)]) if name[:6] == "bench_"]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Floeplan against other tools.")
    parser.add_argument("suite", nargs="*", help=f"{', '.join(suites)}; all of them by default")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--measured", action="store_true", help="take what was measured before")
    parser.add_argument("--check", action="store_true", help="fail when a ratio is worse than the committed one")
    parser.add_argument("--accept", action="store_true", help="commit to the ratios measured")
    arguments = parser.parse_args()
    if unknown := set(arguments.suite) - set(suites):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suites)}")
    found, regressions = [], 0
    for suite in arguments.suite or suites:
        known = SuiteResult.load(suite, arguments.size) if arguments.measured else None
        result = known or measure(suite, arguments.size)
        found.append(result)
        if arguments.check:
            worse = check(result, lambda suite=suite: measure(suite, arguments.size))
            regressions += len(worse)
            for name, text in worse.items():
                print(f"WORSE {suite}: {name}: {text}", flush=True)
    if arguments.accept:
        accept(found)
    _write_page(suites, arguments.size)
    return int(regressions > 0)


def measure(suite: str, size: str) -> SuiteResult:
    started = time.monotonic()
    rows = import_module(f"bench.bench_{suite}").run(size)
    result = SuiteResult(suite, size, rows, machine(), round(time.monotonic() - started, 1))
    result.save()
    print(f"# {suite} ({size})\n\n{machine_text(result.machine)}\n\n{markdown(rows)}\n", flush=True)
    return result


def _write_page(suites: list[str], size: str) -> None:
    results = [SuiteResult.load(suite, size) for suite in suites]
    missing = [suite for suite, result in zip(suites, results, strict=True) if result is None]
    if missing:
        print(f"{PAGE.name} stays as it is: {', '.join(missing)} not measured at size {size} yet")
        return
    write_page([result for result in results if result is not None])


if __name__ == "__main__":
    sys.exit(main())
