"""Maintain the tables that a dbt run has written, with any adapter: `dbt run; python after_dbt.py target`.

A hook of dbt is a SQL statement in the session of the adapter, and most engines cannot run a program. This step after
the run reads which models were built from `run_results.json` and their tables from `manifest.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import floeplan as fp


def built_tables(target: Path) -> list[str]:
    """The tables of the models, snapshots and seeds that the last run has built."""
    results = json.loads((target / "run_results.json").read_text())["results"]
    nodes = json.loads((target / "manifest.json").read_text())["nodes"]
    names = [one["unique_id"] for one in results if one["status"] == "success"]
    built = [nodes[name] for name in names if name.startswith(("model.", "snapshot.", "seed."))]
    return [f"{node['schema']}.{node['alias']}" for node in built if node["config"].get("materialized") != "view"]


if __name__ == "__main__":
    tables = built_tables(Path(sys.argv[1] if len(sys.argv) > 1 else "target"))
    sys.exit(fp.maintain(tables).exit_code if tables else 0)
