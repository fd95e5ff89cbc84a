"""Iceberg Java's reader of v4 manifests as a judge: a process that answers one JSON request per line."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyspark

from scripts.fetch_jars import CACHE, ensure_jars

SOURCE = Path(__file__).parent / "java" / "TreeJudge.java"


class JudgeError(Exception):
    """What Java raised."""


class TreeJudge:
    """The running judge; ``close`` ends it."""

    def __init__(self, *, warm: bool = False) -> None:
        """``warm`` lets the JVM compile as much as it can, for measurements; without it, it starts faster."""
        jars = ":".join(str(jar) for jar in ensure_jars())
        spark_jars = Path(pyspark.__file__).parent / "jars"
        classes = _compiled(jars)
        options = ["-Xmx4g"] if warm else ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = ["java", *options, "-cp", f"{classes}:{jars}:{spark_jars}/*", "org.apache.iceberg.TreeJudge"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, what: str, **given: Any) -> Any:
        """The result of a request; values that are ``None`` are left out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"what": what} | {name: value for name, value in given.items() if value is not None}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise JudgeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _compiled(jars: str) -> Path:
    """The folder of the compiled judge; compiled once for each version of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    folder = CACHE / f"tree-judge-{digest}"
    with (CACHE / "tree-judge.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            scratch = CACHE / f"tree-judge-{digest}.new"
            shutil.rmtree(scratch, ignore_errors=True)
            subprocess.run(["javac", "-nowarn", "-d", scratch, "-cp", jars, SOURCE], check=True, capture_output=True)
            scratch.rename(folder)
    return folder
