"""Manifest lists as columns, in every version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.avro.decoder import load_decoder
from floeplan.metadata.manifests.manifest_list import ManifestListTable, concat_manifest_lists, parse_manifest_list
from tests.support.tables.manifests import Writer

pytestmark = pytest.mark.unit

DECODERS = [pytest.param(load_decoder(pure), id="python" if pure else "compiled") for pure in (False, True)]
SUMMARY = {"contains_null": True, "contains_nan": None, "lower_bound": b"a", "upper_bound": b"z"}


def listed(path: str, **fields: Any) -> dict[str, Any]:
    return {"manifest_path": path} | fields


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("null_first", [True, False])
def test_every_version_gives_the_same_columns(version: int, null_first: bool, decoder: type) -> None:
    writer = Writer(version=version, null_first=null_first)
    rows = [
        listed("m1", manifest_length=10, partition_spec_id=3, sequence_number=5, content=1, partitions=[SUMMARY] * 2),
        listed("m2", partitions=None, first_row_id=99, key_metadata=b"k", added_rows_count=12),
        listed("m3", partitions=[SUMMARY | {"contains_nan": True, "lower_bound": None, "contains_null": False}]),
    ]
    table = parse_manifest_list(writer.manifest_list(rows), "l", decoder=decoder)
    assert table.path.to_pylist() == ["m1", "m2", "m3"]
    assert (table.length[0], table.spec_id[0]) == (10, 3)
    assert table.sequence_number.tolist() == ([0, 0, 0] if version == 1 else [5, 7, 7])
    assert table.content.tolist() == ([0, 0, 0] if version == 1 else [1, 0, 0])
    assert table.first_row_id.tolist() == ([-1, 99, -1] if version == 3 else [-1, -1, -1])
    assert table.added_rows.tolist() == [10, 12, 10]
    assert table.has_key_metadata.tolist() == [False, True, False]
    assert table.summaries.offsets.tolist() == [0, 2, 2, 3]
    assert table.summaries.contains_null.tolist() == [True, True, False]
    assert table.summaries.contains_nan.tolist() == [-1, -1, 1]
    assert table.summaries.lower.to_pylist() == [b"a", b"a", None]


def test_counts_a_v1_writer_left_out_are_unknown() -> None:
    fields = {"added_files_count": None, "added_rows_count": None, "added_snapshot_id": None}
    table = parse_manifest_list(Writer(version=1).manifest_list([listed("m", **fields)]), "l")
    assert (table.added_files[0], table.added_rows[0], table.added_snapshot_id[0]) == (-1, -1, -1)


def test_taking_rows_takes_their_summaries() -> None:
    rows = [
        listed(f"m{n}", partitions=[SUMMARY | {"lower_bound": bytes([n, at])} for at in range(n)]) for n in range(4)
    ]
    table = parse_manifest_list(Writer().manifest_list(rows), "l")
    taken = table.take(np.array([3, 0, 1]))
    assert taken.path.to_pylist() == ["m3", "m0", "m1"]
    assert taken.summaries.offsets.tolist() == [0, 3, 3, 4]
    assert taken.summaries.lower.to_pylist() == [b"\x03\x00", b"\x03\x01", b"\x03\x02", b"\x01\x00"]
    both = concat_manifest_lists([taken, table])
    assert both.path.to_pylist() == ["m3", "m0", "m1", "m0", "m1", "m2", "m3"]
    assert both.summaries.offsets.tolist() == [0, 3, 3, 4, 4, 5, 7, 10]
    assert len(both.take(np.array([5])).summaries.lower) == 2


def test_an_empty_list_has_no_rows() -> None:
    assert len(parse_manifest_list(Writer().manifest_list([]), "l")) == 0
    assert len(ManifestListTable.empty()) == 0


def test_another_avro_file_is_no_manifest_list() -> None:
    with pytest.raises(CorruptMetadataError, match=r"m.avro is not a manifest list"):
        parse_manifest_list(Writer().manifest([]), "m.avro")
    with pytest.raises(CorruptMetadataError, match="not an Avro container"):
        parse_manifest_list(b"PAR1", "m.avro")
