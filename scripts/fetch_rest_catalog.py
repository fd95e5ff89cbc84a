"""Download Iceberg's REST catalog server, its REST compatibility kit, and Flink, to folders of `.cache` with Maven.

Safe to run concurrently (lock file), offline once the jars exist, and atomic: a folder gets its final name, the hash
of its inputs, only when complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"


def ensure_rest_catalog() -> Path:
    """Return the folder of the server's jars, downloading them if missing."""
    return _ensure("rest-catalog", "Iceberg's REST catalog server")


def ensure_rest_tck() -> Path:
    """Return the folder of the compatibility kit's jars, downloading them if missing."""
    return _ensure("rest-tck", "Iceberg's REST compatibility kit")


def ensure_flink() -> Path:
    """Return the folder of the jars of Flink's MiniCluster with Iceberg, downloading them if missing."""
    return _ensure("flink", "Flink with Iceberg")


def _ensure(name: str, what: str) -> Path:
    pom = Path(__file__).with_name(f"{name.replace('-', '_')}_pom.xml")
    folder = CACHE / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _resolve(pom, folder, what)
    return folder


def _resolve(pom: Path, folder: Path, what: str) -> None:
    if shutil.which("mvn") is None:
        sys.exit(f"{what} needs Maven: install it (Debian: maven) and run again")
    print(f"fetching {what}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        jars = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        run = subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], capture_output=True, text=True)
        if run.returncode != 0 or not jars.exists():
            sys.exit(f"{run.stdout}{run.stderr}\ncannot fetch {what}")
        jars.rename(folder)


if __name__ == "__main__":
    ensure_rest_catalog()
