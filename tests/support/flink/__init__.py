"""Runs SQL statements with Flink and Iceberg's runtime in one process of Java."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts.fetch_rest_catalog import ensure_flink
from tests.support.spark.lake import QUICK_JVM

SOURCE = Path(__file__).parents[1] / "java" / "FlinkQueries.java"
OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "java.time", "java.util")]


def run_flink(folder: Path, *statements: str) -> list[str]:
    """The rows that Flink prints, sorted; the program is compiled into the folder."""
    jars = sorted(map(str, ensure_flink().glob("*.jar")))
    compiler = next(jar for jar in jars if "ecj-" in jar)
    compiled = ["-17", "-nowarn", "-cp", ":".join(jars), "-d", str(folder), str(SOURCE)]
    subprocess.run(["java", "-jar", compiler, *compiled], check=True)
    command = ["java", *QUICK_JVM.split(), *OPENED, "-cp", f"{ensure_flink()}/*:{folder}", "FlinkQueries", *statements]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return sorted(line.removeprefix("row ") for line in done.stdout.splitlines() if line.startswith("row "))
