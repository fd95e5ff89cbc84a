"""Maintain all tables every night with Dagster.

Exit code 3 (only conflicts with other writers) is retried; exit code 1 fails the run at once. What each table gained is
logged as metadata of the run.
"""

import json
import os
import subprocess

from dagster import Definitions, Failure, OpExecutionContext, RetryRequested, ScheduleDefinition, job, op

COMMAND = ["floeplan", "maintain", "--json", "--budget-minutes", "45"]
POLICY = os.environ.get("FLOEPLAN_POLICY")


@op
def maintain(context: OpExecutionContext) -> None:
    """Run `floeplan maintain`."""
    command = [*COMMAND, "--policy", POLICY] if POLICY else COMMAND
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 3:
        raise RetryRequested(max_retries=3, seconds_to_wait=300)
    if done.returncode:
        raise Failure(done.stderr or done.stdout, allow_retries=False)
    result = json.loads(done.stdout)
    context.add_output_metadata({"spent": result["spent"], "left": len(result["left"])})


@job
def maintain_tables() -> None:
    """One op."""
    maintain()


schedule = ScheduleDefinition(job=maintain_tables, cron_schedule="0 2 * * *")
definitions = Definitions(jobs=[maintain_tables], schedules=[schedule])
