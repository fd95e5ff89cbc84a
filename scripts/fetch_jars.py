"""Download the jars that the tests need to `.cache/jars`, by Maven coordinates, with Spark's own resolver.

Safe to run concurrently (lock file), offline once the jars exist, and atomic: a jar gets its final name only when
complete.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
COORDINATES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.47.1.0",
)


def jar_path(coordinate: str) -> Path:
    """Name a jar as Spark's resolver does: group_artifact-version.jar."""
    group, artifact, version = coordinate.split(":")
    return CACHE / "jars" / f"{group}_{artifact}-{version}.jar"


def ensure_jars() -> list[Path]:
    """Return the paths of the jars, fetching what is missing."""
    jars = [jar_path(coordinate) for coordinate in COORDINATES]
    if all(jar.exists() for jar in jars):
        return jars
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "jars.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(jar.exists() for jar in jars):
            _resolve(jars)
    return jars


def _resolve(jars: list[Path]) -> None:
    """Let spark-submit resolve the coordinates for an empty script, then copy the jars from its cache."""
    print(f"fetching {', '.join(COORDINATES)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        resolved = Path(scratch) / "jars"
        nothing = Path(scratch) / "nothing.py"
        nothing.write_text("")
        submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]"]
        packages = ["--packages", ",".join(COORDINATES), "--conf", f"spark.jars.ivy={scratch}"]
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
        run = subprocess.run([*submit, *packages, str(nothing)], env=environment, capture_output=True, text=True)
        missing = [jar.name for jar in jars if not (resolved / jar.name).exists()]
        if run.returncode != 0 or missing:
            sys.exit(f"{run.stdout}{run.stderr}\ncannot fetch {', '.join(missing or COORDINATES)}")
        jars[0].parent.mkdir(parents=True, exist_ok=True)
        for jar in jars:
            (resolved / jar.name).rename(jar)


if __name__ == "__main__":
    ensure_jars()
