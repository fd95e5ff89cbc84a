"""`python -m bench [SUITE …] [--size small|default|large]`: measure Floeplan against other tools.

Every suite prints its table and keeps what it measured in results/. When all suites are asked for, the page of the
documents and ratios.json are written from it: from the same figures, and both or none. `--check` writes nothing and
compares with the ratios that are committed.

A suite is a module `bench_<name>.py` with `run(size) -> list[dict]`. Every row says `suite, case, metric, ours, peer,
ratio, bar`; `ratio` is ours over the peer's, and `bar` what it (or ours, where there is no peer) must not exceed, with
`met` or `missed`. A row with `(floor)` in its case measures what no way can do without; it follows the row with a bar
and the same metric that it is the floor of.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys

from bench.check import accept, check
from bench.measure import measure
from bench.page import write_page
from bench.results import HERE, SuiteResult

SIZES = ("small", "default", "large")


def main() -> int:
    suites = [name.removeprefix("bench_") for _, name, _ in pkgutil.iter_modules([str(HERE)]) if name[:6] == "bench_"]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Floeplan against other tools.")
    parser.add_argument("suite", nargs="*", help=f"{', '.join(suites)}; all of them by default")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--measured", action="store_true", help="take what was measured before")
    parser.add_argument("--check", action="store_true", help="fail when a ratio is worse than the committed one")
    arguments = parser.parse_args()
    if unknown := set(arguments.suite) - set(suites):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suites)}")
    found, failed = [], []
    for suite in arguments.suite or suites:
        known = SuiteResult.load(suite, arguments.size) if arguments.measured else None
        result = known or measure(suite, arguments.size)
        if result is None:
            failed.append(f"{suite}: it broke off")
        else:
            found.append(result)
            failed += _regressions(result) if arguments.check else []
    if not (arguments.check or arguments.suite or failed):
        accept(found)
        write_page(found)
    for text in failed:
        print(f"FAILED {text}", flush=True)
    return int(bool(failed))


def _regressions(result: SuiteResult) -> list[str]:
    worse = check(result, lambda: measure(result.suite, result.size) or result)
    return [f"{result.suite}: {name}: {text}" for name, text in worse.items()]


if __name__ == "__main__":
    sys.exit(main())
