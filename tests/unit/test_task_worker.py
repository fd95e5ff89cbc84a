"""A task has the system's allocator; after it, imported objects are frozen, and archives can be imported again."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
import zipimport
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from floeplan.tasks.worker import reusable

pytestmark = pytest.mark.unit
BATCH = pa.record_batch({"number": [1, 2]})


@reusable
def doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        yield batch


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An archive on the path, from which a package was imported."""
    path = tmp_path / "shipped.zip"
    fill(path, {"shipped_package/__init__.py": "", "shipped_package/first.py": "value = 1"})
    monkeypatch.syspath_prepend(str(path))
    importlib.import_module("shipped_package.first")
    yield path
    for name in [name for name in sys.modules if name.startswith("shipped_package")]:
        del sys.modules[name]


def fill(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def finders(archive: Path) -> list[str]:
    found = sys.path_importer_cache.items()
    return [
        path for path, finder in found if isinstance(finder, zipimport.zipimporter) and Path(finder.archive) == archive
    ]


def test_the_result_of_a_task_is_unchanged(archive: Path) -> None:
    assert list(doubled([BATCH])) == [BATCH, BATCH]


def test_archives_are_dropped_after_a_task(archive: Path) -> None:
    assert len(finders(archive)) == 2
    list(doubled([BATCH]))
    assert finders(archive) == []


def test_a_changed_archive_can_be_imported_afterwards(archive: Path) -> None:
    list(doubled([BATCH]))
    fill(
        archive,
        {"padding.py": "x = 1\n" * 99, "shipped_package/__init__.py": "", "shipped_package/second.py": "value = 2"},
    )
    assert importlib.import_module("shipped_package.second").value == 2


def test_a_task_allocates_from_the_system_and_leaves_the_allocator_as_it_was() -> None:
    before = pa.default_memory_pool().backend_name
    used = list[str]()

    @reusable
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            used.append(pa.default_memory_pool().backend_name)
            yield batch
        raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        list(task([BATCH]))
    assert used == ["system"]
    assert pa.default_memory_pool().backend_name == before


def test_what_a_task_has_imported_is_frozen_and_little_else_is() -> None:
    gc.collect()
    gc.freeze()  # as after the first task
    frozen = gc.get_freeze_count()
    try:
        list(doubled([BATCH]))
        assert gc.get_freeze_count() <= frozen
        imported = [[number] for number in range(50_000)]
        list(doubled([BATCH]))
        assert gc.get_freeze_count() > frozen + len(imported) // 2
    finally:
        gc.unfreeze()
