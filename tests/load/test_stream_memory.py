"""The memory of a stream does not depend on the number of rows: 100 million of them take at most 300 MB.

A separate process reads the stream, and the kernel reports its peak memory, with the interpreter and all libraries. The
files are links to one file.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.tables.two_specs import catalog

pytestmark = [pytest.mark.load, pytest.mark.matrix]

LARGE = os.environ.get("FLOEPLAN_LOAD") == "large"
FILES, ROWS = (100, 1_000_000) if LARGE else (8, 100_000)
MOST_BYTES = 300 * 10**6
NAMES = {"id": pa.int64(), "few": pa.string(), "n": pa.int64(), "note": pa.string()}
SCHEMA = pa.schema(
    [pa.field(name, type_, metadata={"PARQUET:field_id": str(at)}) for at, (name, type_) in enumerate(NAMES.items(), 1)]
)
STREAM = """
import sys
from pathlib import Path
import floeplan as fp

where = sys.argv[2] or None
reader = fp.plan_scan(sys.argv[1], where).to_arrow_batch_reader()
rows = sum(batch.num_rows for batch in reader)
status = Path("/proc/self/status").read_text().splitlines()
print(rows, next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024)
"""


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("stream")
    numbers = np.random.default_rng(1).integers(0, 2**62, ROWS)
    columns = [np.arange(ROWS), [f"k{i % 50}" for i in range(ROWS)], numbers, [f"note {n:x}" for n in numbers]]
    first = folder / "0.parquet"
    rows = pa.table(columns, schema=SCHEMA)
    pq.write_table(rows, first, row_group_size=ROWS // 4, write_page_index=True, use_dictionary=["few"])
    paths = [folder / f"{number}.parquet" for number in range(FILES)]
    for path in paths[1:]:
        path.hardlink_to(first)
    table = catalog(folder).create_table("db.t", SCHEMA, properties={"format-version": "2"})
    table.add_files([str(path) for path in paths], check_duplicate_files=False)
    return str(table.refresh().metadata_location)


@pytest.mark.parametrize(("where", "share"), [("", 1.0), ("few = 'k7'", 0.02)])
def test_a_stream_takes_the_same_memory_for_any_number_of_rows(metadata: str, where: str, share: float) -> None:
    done = subprocess.run([sys.executable, "-c", STREAM, metadata, where], check=True, capture_output=True, text=True)
    rows, taken = map(int, done.stdout.split())
    assert rows == FILES * ROWS * share
    assert taken <= MOST_BYTES
