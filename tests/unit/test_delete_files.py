"""Positions out of position delete files, however their rows lie and whatever their statistics say."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from floeplan.metadata.delete_index import DeleteKind
from floeplan.scan.delete_files import PATH_ID, POSITION_ID, DeleteFileReader
from floeplan.scan.model import DeleteScan

pytestmark = pytest.mark.unit

ONE, OTHER = "file:///lake/one.parquet", "file:///lake/other.parquet"
SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([(ONE, 3), (ONE, 5), (ONE, 90)], {ONE: [3, 5, 90], OTHER: []}, id="one path"),
        pytest.param([(ONE, 90), (ONE, 5), (ONE, 3)], {ONE: [3, 5, 90], OTHER: []}, id="one path, out of order"),
        pytest.param([(OTHER, 4), (ONE, 9), (OTHER, 1)], {ONE: [9], OTHER: [1, 4]}, id="two paths, out of order"),
        pytest.param([], {ONE: [], OTHER: []}, id="no rows"),
    ],
)
@pytest.mark.parametrize("first", [ONE, OTHER])
def test_positions_of_each_data_file(
    tmp_path: Path, rows: list[tuple[str, int]], expected: dict[str, list[int]], statistics: bool, first: str
) -> None:
    path = tmp_path / "deletes.parquet"
    columns = {"file_path": [path for path, _ in rows], "pos": [position for _, position in rows]}
    pq.write_table(pa.table(columns, SCHEMA), path, write_statistics=statistics, row_group_size=2)
    reader, delete = DeleteFileReader(PyArrowFileIO()), scan(path, len(rows))
    for asked in (first, ONE, OTHER):
        assert reader.positions(delete, asked).tolist() == expected[asked]


def test_paths_are_not_read_where_statistics_prove_them(tmp_path: Path) -> None:
    path = tmp_path / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [ONE] * 9, "pos": range(9)}, SCHEMA), path, compression="none")
    stored = path.read_bytes()
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start, size = chunk.dictionary_page_offset, chunk.total_compressed_size
    path.write_bytes(stored[:start] + b"\xff" * size + stored[start + size :])
    assert DeleteFileReader(PyArrowFileIO()).positions(scan(path, 9), ONE).tolist() == list(range(9))


def scan(path: Path, rows: int) -> DeleteScan:
    return DeleteScan(
        path=str(path),
        format="PARQUET",
        kind=DeleteKind.POSITION_FILE,
        record_count=rows,
        file_size=path.stat().st_size,
        sequence_number=1,
        equality_ids=(),
        content_offset=None,
        content_size=None,
    )
