"""Private APIs that a module depends on: these tests fail when a new release changes them."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import numpy as np
import pytest
import zstandard
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataWrapper
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from floeplan.format4 import TableMetadataV4
from floeplan.parquet.pages import zstd
from floeplan.schemas import fields_by_id, mapped_field_ids
from floeplan.tasks.worker import reusable

pytestmark = pytest.mark.unit


def test_the_cached_field_index_of_a_schema_equals_the_public_one() -> None:
    inner = StructType(NestedField(4, "x", IntegerType()))
    schema = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", ListType(3, inner)))
    assert fields_by_id(schema) == index_by_id(schema)
    assert fields_by_id(schema) is fields_by_id(schema)


def test_a_name_mapping_has_its_fields_by_full_name() -> None:
    inner = MappedField(names=["x", "y"], field_id=4)
    mapping = NameMapping([MappedField(names=["a", "b"], field_id=1, fields=[inner]), MappedField(names=["c"])])
    found = mapped_field_ids(mapping, "file")
    assert found == {"a": 1, "b": 1, "a.x": 4, "a.y": 4, "b.x": 4, "b.y": 4}, "see floeplan/schemas.py"


def test_pyiceberg_takes_format_4_only_from_floeplan() -> None:
    for model, field in ((TableMetadataWrapper, "root"), (CommitTableResponse, "metadata")):
        assert TableMetadataV4 in model.model_fields[field].annotation.__args__, "see floeplan/format4.py"
    with pytest.raises(ValidationError):  # once it parses format 4 itself, floeplan/format4.py can go
        TableMetadataUtil.parse_obj({"format-version": 4})


def test_the_cffi_binding_of_zstandard_compresses_external_matches() -> None:
    assert zstd.available, "zstandard._cffi has changed: see floeplan/parquet/pages/zstd.py"
    numbers = np.arange(100_000, dtype="<i8").tobytes()
    compressed = zstd.NeighbourCompressor().compress(memoryview(numbers), 0, 8)
    assert len(compressed) < len(numbers)
    assert zstandard.ZstdDecompressor().decompress(compressed, max_output_size=len(numbers)) == numbers
    packed = zstandard.ZstdCompressor().compress(numbers)
    assert zstd.Decompressor().decompress(memoryview(packed), len(numbers)).tobytes() == numbers


@pytest.mark.parametrize("library", ["libzstd.so.1", "libzstd.so.none", "libc.so.6"])
def test_pages_are_decompressed_with_and_without_a_system_library(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, function in zip(("_create", "_free", "_decompress"), zstd._decompression(library), strict=True):
        monkeypatch.setattr(zstd, name, function)
    numbers = np.arange(100_000, dtype="<i8").tobytes()
    packed = zstandard.ZstdCompressor().compress(numbers)
    assert zstd.Decompressor().decompress(memoryview(packed), len(numbers)).tobytes() == numbers
    with pytest.raises(ValueError, match="Zstandard"):
        zstd.Decompressor().decompress(memoryview(packed[:-1]), len(numbers))


def test_a_reusable_task_drops_zip_importers_and_the_directories_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "shipped.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("floeplan_shipped_probe.py", "VALUE = 1")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.import_module("floeplan_shipped_probe").VALUE == 1
    directories = zipimport._zip_directory_cache  # type: ignore[attr-defined]
    assert str(archive) in directories, "zipimport has changed: see floeplan/tasks/worker.py"
    list(reusable(lambda batches: batches)([]))
    assert str(archive) not in directories
    assert not any(isinstance(finder, zipimport.zipimporter) for finder in sys.path_importer_cache.values())
