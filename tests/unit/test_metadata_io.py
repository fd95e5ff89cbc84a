"""Reading metadata bytes: local paths in every form, and remote files in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from floeplan.errors import CorruptMetadataError, FloeplanError
from floeplan.metadata.files import local_path, read_file, read_files

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b", "/a/b"),
        ("a/b", "a/b"),
        ("file:///a/b#c?d%20e", "/a/b#c?d%20e"),
        ("file:/a/b", "/a/b"),
        ("s3://bucket/a", None),
        ("hdfs://host/a", None),
    ],
)
def test_local_locations_are_recognised(location: str, path: str | None) -> None:
    assert local_path(location) == path


def test_files_are_returned_in_the_requested_order(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}").write_bytes(bytes([number]))
    wanted = [f"file://{tmp_path}/{number}" for number in (3, 1, 4, 1)]
    assert list(read_files(wanted)) == [b"\x03", b"\x01", b"\x04", b"\x01"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptMetadataError, match=r"nothing.avro does not exist"):
        read_file(f"{tmp_path}/nothing.avro")


@pytest.mark.parametrize(("value", "module"), [("1", "_avro_fallback"), ("0", "_avro_decode")])
def test_the_environment_chooses_the_decoder(value: str, module: str) -> None:
    code = "from floeplan.metadata.avro.decoder import DECODER; print(DECODER.__module__)"
    environment = os.environ | {"FLOEPLAN_PURE_PYTHON": value}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"floeplan.metadata.avro.{module}"


def test_without_the_compiled_decoder_the_python_one_is_used() -> None:
    code = (
        "import sys; sys.modules['floeplan.metadata.avro._avro_decode'] = None\n"
        "from floeplan.metadata.avro.decoder import DECODER; print(DECODER.__module__)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "floeplan.metadata.avro._avro_fallback"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("http://[::1", "corrupt-metadata", "names no file"),
        ("a\x00b", "corrupt-metadata", "names no file"),
        ("n" * 5000, "unreadable", "File name too long"),
        ("/", "corrupt-metadata", "which is a folder"),
    ],
)
def test_an_unreadable_location_is_a_floeplan_error(name: str, kind: str, message: str) -> None:
    with pytest.raises(FloeplanError, match=message) as error:
        read_file(name)
    assert error.value.kind == kind
