"""Which delete files apply to which data files, rule by rule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.delete_index import DataFiles, DeleteFiles, DeleteKind, match_deletes
from floeplan.predicate.stats import Bound, ColumnStats

pytestmark = pytest.mark.unit

Delete = tuple[str, DeleteKind, int, int, str | None, tuple[int, ...]]


def data(*files: tuple[str, int, int], stats: Mapping[int, ColumnStats] | None = None) -> DataFiles:
    paths, sequences, partitions = zip(*files, strict=True)
    return DataFiles(pa.array(paths), np.array(sequences), np.array(partitions), stats or {})


def deletes(*files: Delete, stats: Mapping[int, ColumnStats] | None = None) -> DeleteFiles:
    paths, kinds, sequences, partitions, targets, keys = zip(*files, strict=True)
    return DeleteFiles(
        pa.array(paths),
        np.array(kinds, dtype=np.int8),
        np.array(sequences),
        np.array(partitions),
        pa.array(targets, pa.string()),
        keys,
        stats or {},
    )


def matched(data_files: DataFiles, delete_files: DeleteFiles) -> dict[str, list[str]]:
    matches = match_deletes(data_files, delete_files)
    return {
        path: delete_files.path.take(pa.array(matches.of(row))).to_pylist()
        for row, path in enumerate(data_files.path.to_pylist())
    }


def test_global_equality_delete_applies_to_strictly_older_files_of_every_partition() -> None:
    files = data(("older", 1, 0), ("same", 3, 1), ("newer", 4, 0))
    assert matched(files, deletes(("e", DeleteKind.EQUALITY_GLOBAL, 3, 9, None, (1,)))) == {
        "older": ["e"],
        "same": [],
        "newer": [],
    }


def test_partitioned_equality_delete_stays_in_its_partition() -> None:
    files = data(("here", 1, 5), ("elsewhere", 1, 6), ("same", 3, 5))
    assert matched(files, deletes(("e", DeleteKind.EQUALITY_PARTITION, 3, 5, None, (1,)))) == {
        "here": ["e"],
        "elsewhere": [],
        "same": [],
    }


def test_partition_position_delete_applies_to_files_of_the_same_commit() -> None:
    files = data(("older", 1, 5), ("same", 3, 5), ("newer", 4, 5), ("elsewhere", 1, 6))
    assert matched(files, deletes(("p", DeleteKind.POSITION_PARTITION, 3, 5, None, ()))) == {
        "older": ["p"],
        "same": ["p"],
        "newer": [],
        "elsewhere": [],
    }


def test_file_position_delete_finds_its_file_by_path() -> None:
    files = data(("a", 1, 5), ("b", 1, 5), ("late", 9, 5))
    found = matched(
        files,
        deletes(
            ("p", DeleteKind.POSITION_FILE, 3, 5, "b", ()),
            ("stale", DeleteKind.POSITION_FILE, 3, 5, "late", ()),
            ("dangling", DeleteKind.POSITION_FILE, 3, 5, "gone", ()),
        ),
    )
    assert found == {"a": [], "b": ["p"], "late": []}


def test_vector_replaces_all_position_deletes_but_no_equality_delete() -> None:
    found = matched(
        data(("a", 1, 5), ("b", 1, 5)),
        deletes(
            ("file", DeleteKind.POSITION_FILE, 2, 5, "a", ()),
            ("partition", DeleteKind.POSITION_PARTITION, 2, 5, None, ()),
            ("vector", DeleteKind.VECTOR, 3, 5, "a", ()),
            ("equality", DeleteKind.EQUALITY_PARTITION, 3, 5, None, (1,)),
        ),
    )
    assert found == {"a": ["vector", "equality"], "b": ["partition", "equality"]}


def test_many_deletes_and_files_equal_the_rules_applied_pair_by_pair() -> None:
    random = np.random.default_rng(7)
    kinds = [DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION, DeleteKind.POSITION_PARTITION]
    files = [(f"d{i}", int(random.integers(0, 9)), int(random.integers(0, 4))) for i in range(60)]
    removals: list[Delete] = [
        (f"x{i}", kinds[random.integers(0, 3)], int(random.integers(0, 9)), int(random.integers(0, 4)), None, (1,))
        for i in range(40)
    ]

    def applies(delete: Delete, sequence: int, partition: int) -> bool:
        _, kind, newest, scope, _, _ = delete
        if kind is DeleteKind.POSITION_PARTITION:
            return scope == partition and newest >= sequence
        return newest > sequence and (kind is DeleteKind.EQUALITY_GLOBAL or scope == partition)

    expected = {path: [d[0] for d in removals if applies(d, seq, part)] for path, seq, part in files}
    assert matched(data(*files), deletes(*removals)) == expected


def test_two_vectors_for_one_file_are_corrupt() -> None:
    vectors = deletes(("v", DeleteKind.VECTOR, 3, 5, "a", ()), ("w", DeleteKind.VECTOR, 4, 5, "a", ()))
    with pytest.raises(CorruptMetadataError, match="data file a has more than one deletion vector"):
        match_deletes(data(("a", 1, 5)), vectors)


def test_vector_older_than_its_file_is_corrupt() -> None:
    with pytest.raises(CorruptMetadataError, match="deletion vector of data file a is older"):
        match_deletes(data(("a", 4, 5)), deletes(("v", DeleteKind.VECTOR, 3, 5, "a", ())))


@pytest.mark.parametrize("kind", [DeleteKind.POSITION_FILE, DeleteKind.VECTOR])
def test_path_delete_under_another_partition_is_corrupt(kind: DeleteKind) -> None:
    with pytest.raises(CorruptMetadataError, match=r"delete file v is recorded in another spec .* data file a"):
        match_deletes(data(("a", 1, 5)), deletes(("v", kind, 3, 6, "a", ())))


def ranges(*spans: tuple[int, int] | None, may_null: bool = False) -> ColumnStats:
    """One container per span; ``None`` means all null."""
    has_value = np.array([span is not None for span in spans])
    lows = np.array([span[0] if span else 0 for span in spans], dtype=np.int64)
    highs = np.array([span[1] if span else 0 for span in spans], dtype=np.int64)
    nulls = ~has_value | may_null
    return ColumnStats(nulls, np.zeros_like(nulls), has_value, Bound(lows, has_value), Bound(highs, has_value))


@pytest.mark.parametrize(
    ("data_span", "data_null", "delete_span", "delete_null", "applies"),
    [
        ((1, 5), False, (5, 9), False, True),
        ((1, 4), False, (5, 9), False, False),
        ((6, 9), False, (1, 5), False, False),
        ((1, 4), True, (5, 9), True, True),
        ((1, 4), True, (5, 9), False, False),
        (None, True, (5, 9), False, False),
        (None, True, None, True, True),
        ((1, 4), False, None, True, False),
    ],
)
def test_equality_deletes_are_pruned_by_statistics(
    data_span: tuple[int, int] | None,
    data_null: bool,
    delete_span: tuple[int, int] | None,
    delete_null: bool,
    applies: bool,
) -> None:
    files = data(("a", 1, 5), stats={1: ranges(data_span, may_null=data_null)})
    removal = deletes(
        ("e", DeleteKind.EQUALITY_PARTITION, 3, 5, None, (1,)), stats={1: ranges(delete_span, may_null=delete_null)}
    )
    assert matched(files, removal) == {"a": ["e"] if applies else []}


def test_equality_delete_without_statistics_is_kept() -> None:
    files = data(("a", 1, 5), stats={1: ranges((1, 4))})
    assert matched(files, deletes(("e", DeleteKind.EQUALITY_GLOBAL, 3, 0, None, (1,)))) == {"a": ["e"]}


def test_every_key_field_can_rule_an_equality_delete_out() -> None:
    files = data(("a", 1, 5), stats={1: ranges((1, 9)), 2: ranges((1, 4))})
    removal = deletes(
        ("both", DeleteKind.EQUALITY_GLOBAL, 3, 0, None, (1, 2)),
        ("first", DeleteKind.EQUALITY_GLOBAL, 3, 0, None, (1,)),
        stats={1: ranges((1, 9), (1, 9)), 2: ranges((5, 6), (5, 6))},
    )
    assert matched(files, removal) == {"a": ["first"]}
