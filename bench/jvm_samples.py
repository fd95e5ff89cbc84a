"""CPU time inside Spark tasks by Java stack: samples of the JVM's Flight Recorder.

The recorder is part of every JVM and is started through py4j, without a jar or option. It samples threads that run Java
code every few milliseconds; the seconds of task threads, as counted by the system, are divided by these samples. Native
code is not sampled: reading files, and codecs that are not written in Java. Where one compiled loop contains many
functions, a sample may be attributed to a neighbouring function.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.sampler import Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_MS, _DEEPEST = 10, 64
_TASK = "Executor task launch worker"
_ELSEWHERE = ("java.", "jdk.", "scala.", "sun.")
_GENERATED = "org.apache.spark.sql.catalyst.expressions.GeneratedClass$"
_COMMON = (
    "org.apache.spark.sql.execution.datasources.",
    "org.apache.spark.sql.execution.",
    "org.apache.spark.sql.catalyst.expressions.",
    "org.apache.spark.",
    "org.apache.iceberg.shaded.org.apache.",
    "org.apache.",
)


@contextmanager
def task_samples(spark: SparkSession) -> Iterator[Counter[Stack]]:
    """Samples by stack, outermost function first; filled when the context ends."""
    found: Counter[Stack] = Counter()
    jvm: Any = spark._jvm
    recording = jvm.jdk.jfr.Recording()
    recording.enable("jdk.ExecutionSample").withPeriod(jvm.java.time.Duration.ofMillis(_EVERY_MS))
    recording.start()
    with tempfile.TemporaryDirectory() as folder:
        yield found
        recording.stop()
        place = Path(folder) / "samples.jfr"
        recording.dump(jvm.java.io.File(str(place)).toPath())
        recording.close()
        found.update(map(_stack, _samples(place, jvm.java.lang.System.getProperty("java.home"))))


def _samples(recording: Path, java: str) -> Iterator[list[str]]:
    """The functions of each sample of a task, innermost first."""
    tool = [f"{java}/bin/java", "-m", "jdk.jfr/jdk.jfr.internal.tool.Main", "print", "--json"]
    options = ["--events", "jdk.ExecutionSample", "--stack-depth", str(_DEEPEST), str(recording)]
    printed = subprocess.run([*tool, *options], capture_output=True, check=True).stdout
    for event in json.loads(printed)["recording"]["events"]:
        values = event["values"]
        if values["stackTrace"] and values["sampledThread"]["javaName"].startswith(_TASK):
            yield [_function(frame["method"]) for frame in values["stackTrace"]["frames"]]


def _function(method: dict[str, Any]) -> str:
    return f"{method['type']['name'].replace('/', '.')}.{method['name']}"


def _stack(functions: list[str]) -> Stack:
    """The frames from the query's generated code on, or all frames without it.

    Calls within a class are one layer, and standard libraries count for their callers.
    """
    names: list[str] = []
    outermost = max((at for at, name in enumerate(functions) if name.startswith(_GENERATED)), default=len(functions))
    for function in reversed(functions[: outermost + 1]):
        name = _short(function)
        if not function.startswith(_ELSEWHERE) and (not names or _class(name) != _class(names[-1])):
            names.append(name)
    return tuple(names)


def _short(function: str) -> str:
    """Names without common packages and without suffixes that Scala's and Spark's compilers add."""
    if function.startswith(_GENERATED):
        return f"generated code {function.rpartition('.')[2].strip('$')}"
    prefix = next((common for common in _COMMON if function.startswith(common)), "")
    owner, _, method = function.removeprefix(prefix).rpartition(".")
    return f"{owner.partition('$')[0]} {method.removeprefix('$anonfun$').partition('$')[0]}"


def _class(name: str) -> str:
    return name.rpartition(" ")[0]
