"""Positions from position delete files, for any row order and statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyroaring import BitMap64

from floeplan.errors import CorruptFileError
from floeplan.metadata.delete_index import DeleteKind
from floeplan.parquet import source
from floeplan.parquet.source import ByteSource
from floeplan.scan import delete_files
from floeplan.scan.delete_files import PATH_ID, POSITION_ID, DeleteFileReader
from floeplan.scan.model import DeleteScan
from floeplan.write.position_deletes import encode_puffin

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
    for path in (first, ONE, OTHER):
        assert reader.positions(delete, path).tolist() == expected[path]


@pytest.mark.parametrize("paths", [[ONE, ONE], [ONE, OTHER]])
def test_a_row_before_the_first_is_an_error_and_not_the_last_one(tmp_path: Path, paths: list[str]) -> None:
    path = tmp_path / "deletes.parquet"
    pq.write_table(pa.table({"file_path": paths, "pos": [-1, 7]}, SCHEMA), path)
    with pytest.raises(CorruptFileError, match=r"deletes\.parquet deletes row -1 of file:///lake/one\.parquet"):
        DeleteFileReader(PyArrowFileIO()).positions(scan(path, 2), ONE)


def test_paths_are_not_read_where_statistics_prove_them(tmp_path: Path) -> None:
    path = tmp_path / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [ONE] * 9, "pos": range(9)}, SCHEMA), path, compression="none")
    stored = path.read_bytes()
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start, size = chunk.dictionary_page_offset, chunk.total_compressed_size
    path.write_bytes(stored[:start] + b"\xff" * size + stored[start + size :])
    assert DeleteFileReader(PyArrowFileIO()).positions(scan(path, 9), ONE).tolist() == list(range(9))


@pytest.mark.parametrize(("together", "times"), [(1, 6), (2, 3), (6, 1)])
def test_expected_vectors_are_read_together_within_the_memory_limit(
    tmp_path: Path, together: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = vector_file(tmp_path / "deletes.puffin", files=6)
    monkeypatch.setattr(delete_files, "VECTOR_BYTES_AT_ONCE", together * (vectors[0].content_size or 0))
    fetched = count_sources(monkeypatch)
    reader = DeleteFileReader(PyArrowFileIO())
    reader.expect([*vectors, *vectors])
    for number in (4, 0, 1, 2, 3, 5, 4):
        assert reader.positions(vectors[number], ONE).tolist() == [number, number + 10]
    assert fetched == ["deletes.puffin"] * times


def test_vectors_that_were_not_expected_are_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = count_sources(monkeypatch)
    vectors = vector_file(tmp_path / "deletes.puffin", files=3)
    reader = DeleteFileReader(PyArrowFileIO())
    reader.expect(vectors[:1])
    assert [reader.positions(vector, ONE).tolist() for vector in vectors] == [[0, 10], [1, 11], [2, 12]]
    assert len(fetched) == 3


def test_a_vector_without_a_place_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    vector = replace(vector_file(tmp_path / "deletes.puffin", files=1)[0], content_offset=None)
    with pytest.raises(CorruptFileError, match=r"deletion vector in .*deletes\.puffin has no content offset"):
        DeleteFileReader(PyArrowFileIO()).positions(vector, ONE)


def count_sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the names of opened files."""
    opened: list[str] = []

    def open_source(path: str, io: FileIO) -> ByteSource:
        opened.append(Path(path).name)
        return source.open_source(path, io)

    monkeypatch.setattr(delete_files, "open_referenced", open_source)
    return opened


def vector_file(path: Path, files: int) -> list[DeleteScan]:
    """Vectors of some data files, the n-th with rows n and n + 10."""
    encoded, places = encode_puffin([(ONE, BitMap64([n, n + 10])) for n in range(files)])
    path.write_bytes(encoded)
    kind = {"kind": DeleteKind.VECTOR, "format": "PUFFIN"}
    return [replace(scan(path, 2), content_offset=at, content_size=size, **kind) for at, size in places]


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


def test_files_that_were_not_used_for_long_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_files, "CACHED_FILES", 2)
    vectors = vector_file(tmp_path / "deletes.puffin", files=3)
    fetched, reader = count_sources(monkeypatch), DeleteFileReader(PyArrowFileIO())
    for number, times in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        assert reader.positions(vectors[number], ONE).tolist() == [number, number + 10]
        assert len(fetched) == times
