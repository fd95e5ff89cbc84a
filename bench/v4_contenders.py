"""`python -m bench.v4_contenders NAME METADATA ROOT [WHERE]`: plan once; print CPU, files, bytes and requests as JSON.

Files are counted as a store would see them: a request per manifest, or per coalesced range of a v4 manifest.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from floeplan.catalog import load_table
from floeplan.metadata import files, root, root_writer  # noqa: F401
from floeplan.metadata.v4 import manifest_file
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan

TRAFFIC = {"requests": 0, "bytes": 0}


class Counted(io.FileIO):
    """A file that counts its reads."""

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size)
        TRAFFIC["requests"] += 1
        TRAFFIC["bytes"] += len(data)
        return data


def main(name: str, metadata: str, tree: str, where: str | None = None) -> None:
    table = load_table(metadata)
    options = ScanOptions(footers=False, cache=name == "column cache", report=False)
    if name == "traffic":  # apart from the CPU time, because the files are read through Python
        manifest_file.open_file = lambda path, _=None: pa.PythonFile(Counted(files.local_path(path)), "r")  # type: ignore[attr-defined]
    if name in ("v4 tree", "traffic"):
        options = ScanOptions(footers=False, cache=False, report=False, root=tree)
    if name == "column cache":
        plan_scan(table, where, options=options)
    started = time.process_time()
    plan = plan_scan(table, where, options=options)
    found: dict[str, Any] = {"cpu": time.process_time() - started, "files": plan.summary.files_kept} | TRAFFIC
    if name == "Avro manifests":
        kept = plan.totals.kept
        paths = [path for path, keep in zip(plan.totals.manifests.path.to_pylist(), kept, strict=True) if keep]
        listed = plan.target.snapshot.manifest_list
        sizes = [os.path.getsize(files.local_path(path)) for path in (*paths, listed)]
        found |= {"requests": len(sizes), "bytes": sum(sizes)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
