"""`python -m bench [SUITE …] [--size small|default|large]`: measure Floeplan against other tools.

Every suite prints its table and stores its results in results/. A run of all suites writes docs/benchmarks.md and
ratios.json from the same results; a run of some suites at the size of the page replaces theirs. `--check` writes
neither and compares with ratios.json.

A suite is a module `bench_<name>.py` with `run(size) -> list[dict]`. Every row has `suite, case, metric, ours, peer,
ratio, bar`: `ratio` is ours divided by the peer's, and `bar` the limit for it (or for ours, without a peer), with
`met` or `missed`. A row with `(floor)` in its case measures a lower limit that no implementation can go below; it
follows the row with a bar and the same metric.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys

from bench.check import accept, check
from bench.measure import measure
from bench.page import published_size, write_page
from bench.results import HERE, SuiteResult

SIZES = ("small", "default", "large")


def main() -> int:
    suites = [name.removeprefix("bench_") for _, name, _ in pkgutil.iter_modules([str(HERE)]) if name[:6] == "bench_"]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Floeplan against other tools.")
    parser.add_argument("suite", nargs="*", help=f"{', '.join(suites)}; all of them by default")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--measured", action="store_true", help="use the stored results")
    parser.add_argument("--check", action="store_true", help="fail if a ratio is worse than in ratios.json")
    arguments = parser.parse_args()
    if unknown := set(arguments.suite) - set(suites):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suites)}")
    found, failed = [], []
    for suite in arguments.suite or suites:
        known = SuiteResult.load(suite, arguments.size) if arguments.measured else None
        result = known or measure(suite, arguments.size)
        if result is None:
            failed.append(f"{suite}: the suite failed")
        else:
            found.append(result)
            failed += _regressions(result) if arguments.check else []
    of_the_page = not arguments.suite or arguments.size == published_size()
    if found and of_the_page and not (arguments.check or failed):
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
