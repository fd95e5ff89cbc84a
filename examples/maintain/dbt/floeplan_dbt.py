"""A plugin of dbt-duckdb: the SQL function `floeplan_maintain`, for hooks of dbt.

`floeplan_maintain(['mart.orders'])` runs `floeplan maintain mart.orders` and returns one line of what it did. It fails
the hook when work failed or a table does not exist; conflicts with other writers are left for the next run. The program
is on the PATH or in `$FLOEPLAN`, so that dbt and Floeplan may be in different environments; that of dbt needs NumPy.
"""

from __future__ import annotations

import json
import os
import subprocess

from dbt.adapters.duckdb.plugins import BasePlugin
from duckdb import DuckDBPyConnection

FLOEPLAN = os.environ.get("FLOEPLAN", "floeplan")
POLICY = os.environ.get("FLOEPLAN_POLICY")
CONFLICTS = 3


def maintain(tables: list[str]) -> str:
    """Maintain some tables."""
    policy = ["--policy", POLICY] if POLICY else []
    done = subprocess.run([FLOEPLAN, "maintain", *tables, *policy, "--json"], capture_output=True, text=True)
    document = json.loads(done.stdout)
    if "error" in document:
        raise RuntimeError(document["error"]["message"])
    work = [
        f"{table['table']} {one['kind']} {one['status']}" + (f" ({one['why']})" if one["why"] else "")
        for table in document["tables"]
        for one in table["work"]
    ]
    errors = [f"{table['table']}: {table['error']}" for table in document["tables"] if table["error"]]
    found = "floeplan: " + (", ".join([*work, *errors]) or "nothing to do")
    if done.returncode not in (0, CONFLICTS):
        raise RuntimeError(found)
    return found


class Plugin(BasePlugin):
    """Adds the function to every connection."""

    def configure_connection(self, conn: DuckDBPyConnection) -> None:
        """Called by dbt-duckdb."""
        conn.create_function("floeplan_maintain", maintain, ["VARCHAR[]"], "VARCHAR", side_effects=True)
