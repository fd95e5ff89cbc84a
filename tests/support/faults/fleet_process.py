"""``python -m tests.support.faults.fleet_process PROPERTIES [KILLED-AFTER]``: one run of ``maintain`` in a process.

Prints its result as JSON. With a number, the process kills itself after that many pieces of work, in the middle of the
next one.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from pyiceberg.catalog import load_catalog

from floeplan.fleet.run import MaintainOptions, run_maintenance
from floeplan.transaction.catalog_commit import CommitOptions, RetryPolicy


def main(properties: str, killed_after: str = "-1") -> None:
    """Run once."""
    left = [int(killed_after)]

    def step(name: str) -> None:
        if name == "planned":
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    commit = CommitOptions(retry=RetryPolicy(retries=100, min_wait_ms=10), on_step=step)
    options = MaintainOptions(commit=commit)
    result = run_maintenance(options, catalog=load_catalog("fleet", **json.loads(properties)))
    sys.stdout.write(json.dumps(result.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
