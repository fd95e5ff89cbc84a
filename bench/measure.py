"""`python -m bench.measure SUITE SIZE`: run one suite, store its results, and print them.

Each suite runs in a new process, so that it does not share the JVM, caches or memory of another.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import import_module

from bench.results import HERE, SuiteResult, machine, machine_text, markdown, stated


def measure(suite: str, size: str) -> SuiteResult | None:
    """Run a suite in a new process; None if it failed."""
    _touch_memory()
    done = subprocess.run([sys.executable, "-m", "bench.measure", suite, size], cwd=HERE.parent, check=False)
    return SuiteResult.load(suite, size) if done.returncode == 0 else None


def _touch_memory() -> None:
    """Write once to most of the free memory, for the same conditions for all contenders.

    A virtual machine gets a page of memory from its host when it is first written to. The first large job of a suite
    would wait for that, a quarter more CPU time in a sort of 2 GB.
    """
    size = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE * 3 // 4
    with mmap.mmap(-1, size) as pages:
        for first in range(0, size, mmap.PAGESIZE):
            pages[first] = 1


def main(suite: str, size: str) -> None:
    started = time.monotonic()
    rows = stated(import_module(f"bench.bench_{suite}").run(size))
    today = datetime.now(UTC).date().isoformat()
    result = SuiteResult(suite, size, rows, machine(), round(time.monotonic() - started, 1), today)
    result.save()
    text = f"# {suite} ({size}), {result.seconds:.0f} s\n\n{machine_text(result.machine)}\n\n{markdown(rows)}\n"
    print(text, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
