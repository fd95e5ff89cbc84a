"""The benchmark clock counts the CPU time of a process tree since the clock was started.

Measured in a separate process, since the test process may have other children.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit
PROGRAM = """
import json, subprocess, sys, time
from bench.cpu_clock import CpuClock, process_tree

busy = "import time\\nwhile time.process_time() < 0.3: pass\\nprint(time.process_time(), flush=True)\\ninput()"
clock = CpuClock()
with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    used = float(child.stdout.readline())
    there, whole, late = child.pid in process_tree(), clock.seconds(), CpuClock().seconds()
    child.stdin.write(b"\\n")
gone = child.pid not in process_tree()
fine, before = CpuClock(), time.process_time()
while (spent := time.process_time() - before) < 0.003:
    pass
print(json.dumps([there, gone, used, whole, late, spent, fine.seconds()]))
"""


def test_processes_count_while_they_live_from_when_the_clock_started() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    there, gone, used, whole, late, spent, seen = json.loads(done.stdout)
    assert there
    assert gone
    assert whole >= used > late, "CPU time before the start of a clock does not count"
    assert seen >= spent, "less than a hundredth of a second"
