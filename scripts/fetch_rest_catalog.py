"""Put Iceberg's own REST catalog server into `.cache/rest-catalog`, once, with Maven.

Safe to run from several processes at a time (a lock file), offline once the jars are there, and atomic: the folder
appears under its final name only when it is complete. It is named by what it was made from.
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
POM = Path(__file__).with_name("rest_catalog_pom.xml")


def ensure_rest_catalog() -> Path:
    """Return the folder of the server's jars, fetching them when they are missing."""
    folder = CACHE / f"rest-catalog-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "rest-catalog.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _resolve(folder)
    return folder


def _resolve(folder: Path) -> None:
    if shutil.which("mvn") is None:
        sys.exit("fetching the REST catalog server takes Maven: install it (Debian: maven) and run again")
    print("fetching Iceberg's REST catalog server", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        jars = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        run = subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *goal], capture_output=True, text=True)
        if run.returncode != 0 or not jars.exists():
            sys.exit(f"{run.stdout}{run.stderr}\ncannot fetch the REST catalog server")
        jars.rename(folder)


if __name__ == "__main__":
    ensure_rest_catalog()
