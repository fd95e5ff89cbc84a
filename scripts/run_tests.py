"""`python scripts/run_tests.py [pytest arguments]`: all tests in two processes that share the files; some tests in one.

The first process prints as it goes, the other when it has ended. `FLOEPLAN_TEST_JOBS` sets the number of processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CLAIMS = "FLOEPLAN_TEST_CLAIMS"


def main(arguments: list[str]) -> int:
    jobs = int(os.environ.get("FLOEPLAN_TEST_JOBS", "1" if arguments else "2"))
    command = [sys.executable, "-m", "pytest", *arguments]
    if jobs < 2:
        return subprocess.run(command, check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        claims = Path(folder, "claims")
        claims.mkdir()
        environment = os.environ | {CLAIMS: str(claims)}
        logs = [Path(folder, f"{job}.log") for job in range(1, jobs)]
        others = [_start(command, environment, log) for log in logs]
        codes = [subprocess.run(command, env=environment, check=False).returncode]
        for other, log in zip(others, logs, strict=True):
            codes.append(other.wait())
            print(log.read_text(errors="replace"), flush=True)
    return max(codes)


def _start(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
