"""`python -m bench.v4_contenders NAME METADATA ROOT [WHERE]`: plan once; print CPU, files, bytes and requests as JSON.

Files are counted as a store would see them: a request per manifest, or per range of a v4 manifest that is read. The
contender ``decoding`` plans from the tree first and then reads the same columns of the same files with pyarrow alone.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy.ma  # noqa: F401  Arrow imports it on first use, which is not part of planning
import pyarrow as pa
import pyarrow.parquet as pq

from floeplan.catalog import load_table
from floeplan.metadata import files, root, root_writer  # noqa: F401
from floeplan.metadata.v4 import manifest_file
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan

TRAFFIC = {"requests": 0, "bytes": 0}


class Counted(io.FileIO):
    """A file that counts its reads."""

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size)
        TRAFFIC["requests"] += 1
        TRAFFIC["bytes"] += len(data)
        return data


class Recorded(pq.ParquetFile):
    """A Parquet file that remembers which columns are read from which path."""

    reads: ClassVar[list[tuple[str, list[str]]]] = []

    def __init__(self, source: Any, **options: Any) -> None:
        self.path = source.path if isinstance(source, Named) else str(source)
        super().__init__(source.file if isinstance(source, Named) else source, **options)

    def read(self, columns: Any = None, **options: Any) -> pa.Table:
        self.reads.append((self.path, columns))
        return super().read(columns, **options)


class Named:
    """An open file and its path."""

    def __init__(self, path: str) -> None:
        self.path = files.local_path(path) or path
        self.file = pa.OSFile(self.path, "rb")


def main(name: str, metadata: str, tree: str, where: str | None = None) -> None:
    table = load_table(metadata)
    from_tree = name in ("v4 tree", "traffic", "decoding")
    options = ScanOptions(footers=False, cache=name == "column cache", report=False, root=tree if from_tree else None)

    def plan() -> ScanPlan:
        return plan_scan(table, where, options=options)

    if name == "decoding":
        print(json.dumps({"cpu": _cpu(_decoding(plan))[0], "files": 0}))
        return
    if name == "traffic":  # apart from the CPU time, because the files are read through Python
        manifest_file.open_file = lambda path, _=None: pa.PythonFile(Counted(files.local_path(path)), "r")  # type: ignore[attr-defined]
    cpu, made = _cpu(plan)
    found: dict[str, Any] = {"cpu": cpu, "files": made.summary.files_kept} | TRAFFIC
    if name == "Avro manifests":
        kept = made.totals.kept
        paths = [path for path, keep in zip(made.totals.manifests.path.to_pylist(), kept, strict=True) if keep]
        listed = made.target.snapshot.manifest_list
        sizes = [os.path.getsize(files.local_path(path)) for path in (*paths, listed)]
        found |= {"requests": len(sizes), "bytes": sum(sizes)}
    print(json.dumps(found))


def _cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def _decoding(plan: Callable[[], ScanPlan]) -> Callable[[], None]:
    """Read again, without Floeplan, what a plan reads."""
    module: Any = manifest_file  # what it imports is replaced
    usual = module.open_file, module.pq.ParquetFile
    module.open_file, module.pq.ParquetFile = lambda path, _=None: Named(path), Recorded
    plan()
    module.open_file, module.pq.ParquetFile = usual
    columns: dict[str, dict[str, None]] = {}
    for path, names in Recorded.reads:
        columns.setdefault(path, {}).update(dict.fromkeys(names))

    def decode() -> None:
        for path, names in columns.items():
            usual[1](pa.OSFile(path, "rb"), page_checksum_verification=True).read(list(names), use_threads=False)

    return decode


if __name__ == "__main__":
    main(*sys.argv[1:])
