"""Maintain all tables every hour with Airflow 3.

Exit code 3 (only conflicts with other writers) is retried after 5 minutes; exit code 1 fails the task at once, because
a second run would fail in the same way. Two runs never work on one table, so nothing else has to be limited.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime, timedelta

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

COMMAND = ["floeplan", "maintain", "--json", "--budget-minutes", "45"]
POLICY = os.environ.get("FLOEPLAN_POLICY")


@task(retries=3, retry_delay=timedelta(minutes=5), execution_timeout=timedelta(hours=2))
def maintain() -> list[dict[str, str]]:
    """Run `floeplan maintain`; the result of the task is what is left."""
    command = [*COMMAND, "--policy", POLICY] if POLICY else COMMAND
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 3:
        raise AirflowException("conflicts with other writers")
    if done.returncode:
        raise AirflowFailException(done.stderr or done.stdout)
    return json.loads(done.stdout)["left"]


@dag(schedule="@hourly", start_date=datetime(2024, 1, 1), catchup=False, max_active_runs=1, tags=["iceberg"])
def maintain_tables() -> None:
    """One task."""
    maintain()


tables = maintain_tables()
