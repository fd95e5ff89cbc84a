"""Rewrite plans of evolved tables: selected and skipped files, groups, and reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg import transforms as pt
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from floeplan.errors import (
    CorruptMetadataError,
    InvalidOptionError,
    StrictModeError,
    UnknownColumnError,
    UnknownSpecError,
)
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.plan import groups
from floeplan.rewrite.plan.filter import FilterStats
from floeplan.rewrite.plan.model import RewriteDataFilesPlan, RewriteDataFilesPlanningResult
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from tests.support.tables.commits import create_table, open_catalog
from tests.support.tables.layouts import Layout
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

DAY = 86_400_000_000
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "ts", TimestampType(), required=False),
)


def spec(spec_id: int, *fields: tuple[int, int, Any]) -> PartitionSpec:
    return PartitionSpec(*(PartitionField(s, i, t, f"p{i}") for i, s, t in fields), spec_id=spec_id)


IDENTITY, DAYS, BUCKET = pt.IdentityTransform(), pt.DayTransform(), pt.BucketTransform(8)
PLAIN, BY_REGION = spec(0), spec(1, (1000, 2, IDENTITY))
BY_DAY = spec(2, (1000, 2, IDENTITY), (1001, 3, DAYS))
BY_BUCKET = spec(3, (1002, 1, BUCKET))
UNKNOWN = spec(4, (1003, 2, pt.UnknownTransform("soundex")))
SIZES = {"target_file_size_bytes": 1000, "min_file_size_bytes": 750, "max_file_size_bytes": 1800}
LAYOUT = Layout(SCHEMA, (PLAIN, BY_REGION, BY_DAY))


def file(spec_id: int, size: int = 100, partition: dict[int, Any] | None = None, **more: Any) -> dict[str, Any]:
    values = {f"partition.{i}": value for i, value in (partition or {}).items()}
    return {"spec_id": spec_id, "file_size_in_bytes": size, **values, **more}


def times(first: int, last: int) -> dict[str, Any]:
    """Statistics of a file with timestamps in a range, without nulls."""
    return {
        "null_value_counts": {3: 0},
        "lower_bounds": {3: to_bytes(TimestampType(), first)},
        "upper_bounds": {3: to_bytes(TimestampType(), last)},
    }


def regions(first: str, last: str, rows: int = 10) -> dict[str, Any]:
    return {
        "value_counts": {2: rows},
        "null_value_counts": {2: 0},
        "lower_bounds": {2: first.encode()},
        "upper_bounds": {2: last.encode()},
    }


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Table]:
    """A table of these entries."""

    def make(*rows: dict[str, Any], layout: Layout = LAYOUT, folder: str = "t") -> Table:
        return layout.write_table(tmp_path / folder, layout.entries(rows))

    return make


def plan_with_stats(table: Table, **options: Any) -> RewriteDataFilesPlanningResult:
    return RewriteDataFilesPlanner(table, RewriteOptions(**(SIZES | options)), cache=False).plan_with_stats()


def plan(table: Table, **options: Any) -> RewriteDataFilesPlan:
    return plan_with_stats(table, **options).plan


def names(found: RewriteDataFilesPlan) -> list[list[str]]:
    """The paths of the files of each group."""
    return [[scan.path for scan in found.group_files(group)] for group in found.groups]


def decisions(found: RewriteDataFilesPlan) -> dict[str, str]:
    return dict(zip(*(found.decisions[name].to_pylist() for name in ("file_path", "decision")), strict=True))


EVOLVED = (
    file(0, file_path="a0"),
    file(0, file_path="a1"),
    file(1, partition={1000: "eu"}, file_path="b0"),
    file(1, partition={1000: "eu"}, file_path="b1"),
    file(1, partition={1000: "us"}, file_path="b2"),
    file(2, partition={1000: "eu", 1001: 5}, file_path="c0"),
    file(2, partition={1000: "eu", 1001: 5}, file_path="c1"),
    file(2, partition={1000: "us", 1001: 6}, file_path="c2"),
)


def test_plan_evolved_table_no_filter(make: Any) -> None:
    found = plan_with_stats(make(*EVOLVED), min_input_files=2)
    assert names(found.plan) == [["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]
    assert [group.key for group in found.plan.groups] == [
        PartitionKey(0, None),
        PartitionKey(1, ("eu",)),
        PartitionKey(2, ("eu", 5)),
    ]
    assert [(g.spec_id, g.output_spec_id, g.bytes, g.expected_outputs) for g in found.plan.groups] == [
        (0, 0, 200, 1),
        (1, 1, 200, 1),
        (2, 2, 200, 1),
    ]
    assert found.plan.groups[2].partition == {"p1000": "eu", "p1001": "1970-01-06"}
    assert found.plan.skipped == {"group-too-small": 2}
    assert found.filter_stats == FilterStats()
    assert found.warnings == ()


def test_plan_evolved_table_with_filter(make: Any) -> None:
    table = make(*EVOLVED)
    found = plan_with_stats(table, partition_filter="region = 'eu'", rewrite_all=True)
    assert names(found.plan) == [["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]
    assert found.plan.skipped == {"outside-filter": 2}
    assert found.filter_stats == FilterStats()
    by_time = plan(table, partition_filter="ts >= TIMESTAMP_NTZ '1970-01-07 00:00:00'", rewrite_all=True)
    assert names(by_time) == [["a0", "a1"], ["b0", "b1"], ["b2"], ["c2"]]


def test_plan_evolved_table_fail_open_stats(make: Any) -> None:
    layout = Layout(SCHEMA, (BY_REGION, UNKNOWN))
    rows = (
        file(1, partition={1000: "us"}),
        file(4, partition={1003: "E1"}, file_path="u0"),
        file(4, partition={1003: "E1"}, file_path="u1"),
        file(4, 1000, partition={1003: "E2"}, file_path="good"),
    )
    found = plan_with_stats(make(*rows, layout=layout), partition_filter="region = 'eu'", min_input_files=2)
    assert found.filter_stats == FilterStats(unevaluable_specs=1, fail_open_partitions=2, fail_open_files=2)
    assert names(found.plan) == [["u0", "u1"]]
    (warning,) = found.warnings
    assert (warning.kind, warning.context["spec_id"], warning.context["files"]) == ("unevaluable-spec", 4, 2)
    assert "unknown transform" in warning.message


def test_plan_deterministic_group_ids(make: Any) -> None:
    found = plan(make(*EVOLVED), rewrite_all=True)
    again = plan(make(*EVOLVED[::-1], folder="reversed"), rewrite_all=True)
    assert names(found) == names(again)
    assert [group.key for group in found.groups] == [group.key for group in again.groups]
    assert [group.group_id for group in found.groups] == list(range(len(found.groups)))
    largest_first = plan(make(*EVOLVED, folder="ordered"), rewrite_all=True, rewrite_job_order="files-desc")
    assert sorted(group.group_id for group in largest_first.groups) == list(range(len(found.groups)))
    assert {g.group_id: g.key for g in largest_first.groups} == {g.group_id: g.key for g in found.groups}


@pytest.mark.parametrize("together", [1, 3, 4])
def test_partitions_that_are_sorted_apart_make_the_same_groups(
    make: Any, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(groups, "_SORTED_TOGETHER", together)
    found = plan(make(*EVOLVED[::-1]), rewrite_all=True)
    assert names(found) == [["a0", "a1"], ["b0", "b1"], ["b2"], ["c0", "c1"], ["c2"]]


def test_a_table_without_data_has_an_empty_plan(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table("db.empty", SCHEMA)
    found = plan_with_stats(table, partition_filter="id = 1")
    assert (found.plan.groups, found.plan.skipped) == ((), {})


def test_sizes_and_thresholds_give_every_file_its_reason(make: Any) -> None:
    rows = [file(0, size, file_path=f"s{size}") for size in (749, 750, 1800, 1801)]
    found = plan(make(*rows))
    assert decisions(found) == {
        "s749": "too-small",
        "s750": "no-reason",
        "s1800": "no-reason",
        "s1801": "too-large",
    }
    (group,) = found.groups
    assert (group.reasons, group.bytes, group.expected_outputs) == ({"too-small": 1, "too-large": 1}, 2550, 3)
    assert found.skipped == {"no-reason": 2}


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ([100], False),
        ([100, 100], False),
        ([400, 400, 400], True),  # more than one output file
        ([100] * 5, True),  # at least min-input-files
        ([1900], True),  # one oversized file
    ],
)
def test_groups_below_the_thresholds_are_skipped(make: Any, sizes: list[int], taken: bool) -> None:
    found = plan(make(*(file(0, size) for size in sizes)))
    assert len(found.groups) == taken
    assert found.skipped == ({} if taken else {"group-too-small": len(sizes)})


@pytest.mark.parametrize("sizes", [[600, 600], [740, 740, 740]])
def test_small_files_that_would_not_become_fewer_are_skipped(make: Any, sizes: list[int]) -> None:
    """Rewriting them would produce the same files, in every run."""
    table = make(*(file(0, size, file_path=f"f{n}") for n, size in enumerate(sizes)))
    assert plan(table).skipped == {"no-fewer-files": len(sizes)}
    assert plan(table, min_input_files=2).skipped == {"no-fewer-files": len(sizes)}
    assert plan(table, rewrite_all=True).skipped == {}
    (group,) = plan(make(*(file(0, 600) for _ in range(2)), file(0, 2000), folder="large")).groups
    assert group.reasons == {"too-small": 2, "too-large": 1}


def delete(target: str, records: int, **more: Any) -> dict[str, Any]:
    return {"content": 1, "record_count": records, "referenced_data_file": target, **more}


def test_deletes_make_a_file_worth_rewriting(make: Any) -> None:
    """Each threshold alone, by Iceberg's rule: only file-scoped deletes count for the ratio."""
    rows = [file(0, 1000, file_path=name, record_count=100) for name in ("few", "many", "shared")]
    rows += [delete("few", 29), delete("many", 10), delete("many", 20)]
    rows += [{"content": 1, "record_count": 90}]
    found = plan(make(*rows))
    assert decisions(found) == {"few": "no-reason", "many": "delete-ratio", "shared": "no-reason"}
    assert [(group.delete_files, len(group.rows)) for group in found.groups] == [(3, 1)]
    assert len(found.group_files(found.groups[0])[0].deletes) == 3
    by_number = plan(make(*rows, folder="number"), delete_file_threshold=3)
    assert decisions(by_number) == {"few": "no-reason", "many": "deletes delete-ratio", "shared": "no-reason"}


def test_a_group_counts_a_delete_file_once(make: Any) -> None:
    rows = [file(0, file_path="a"), file(0, file_path="b"), {"content": 1, "record_count": 90}]
    assert plan(make(*rows), rewrite_all=True).groups[0].delete_files == 1


def test_groups_are_packed_within_their_limits(make: Any) -> None:
    rows = [file(0, size, file_path=f"f{n}") for n, size in enumerate((40, 40, 40, 300, 10))]
    found = plan(make(*rows), max_file_group_size_bytes=100, rewrite_all=True)
    assert names(found) == [["f0", "f1"], ["f2"], ["f3"], ["f4"]]
    by_count = plan(make(*rows, folder="count"), max_file_group_input_files=2, rewrite_all=True)
    assert names(by_count) == [["f0", "f1"], ["f2", "f3"], ["f4"]]


def test_max_files_to_rewrite_is_respected(make: Any) -> None:
    found = plan(make(*EVOLVED), rewrite_all=True, max_files_to_rewrite=3)
    assert names(found) == [["a0", "a1"], ["b0"]]
    assert found.skipped == {"beyond-max-files": 5}
    assert decisions(found)["b1"] == "beyond-max-files"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("none", ["b", "a", "c"]),
        ("bytes-asc", ["c", "b", "a"]),
        ("bytes-desc", ["a", "b", "c"]),
        ("files-asc", ["a", "c", "b"]),
        ("files-desc", ["b", "a", "c"]),
    ],
)
def test_groups_are_in_the_requested_order(make: Any, order: str, expected: list[str]) -> None:
    rows = [file(1, 300, {1000: "2"}, file_path="a"), file(1, 10, {1000: "3"}, file_path="c")]
    rows += [file(1, 100, {1000: "1"}, file_path=f"b{n}") for n in range(2)]
    found = plan(make(*rows), rewrite_all=True, rewrite_job_order=order)
    assert [group[0][0] for group in names(found)] == expected


def test_where_leaves_out_files_whose_bounds_admit_no_row(make: Any) -> None:
    rows = (
        file(0, file_path="in", **regions("ap", "us")),
        file(0, file_path="out", **regions("ap", "at")),
        file(0, file_path="unknown"),
    )
    table = make(*rows)
    assert decisions(plan(table, where="region = 'eu'", rewrite_all=True)) == {
        "in": "too-small rewrite-all",
        "out": "no-matching-rows",
        "unknown": "too-small rewrite-all",
    }
    assert plan(table, partition_filter="region = 'eu'", rewrite_all=True).skipped == {}


def test_where_joins_partition_values_and_bounds_leaf_by_leaf(make: Any) -> None:
    bounds = {"null_value_counts": {1: 0}, "lower_bounds": {1: to_bytes(LongType(), 7)}}
    table = make(file(1, partition={1000: "us"}, file_path="f", **bounds))
    assert decisions(plan(table, where="region = 'eu' OR id < 7", rewrite_all=True)) == {"f": "no-matching-rows"}
    assert len(plan(table, where="region = 'eu' OR id <= 7", rewrite_all=True).groups) == 1


def test_both_filters_must_pass(make: Any) -> None:
    found = plan(make(*EVOLVED), partition_filter="region = 'eu'", where="ts < '1970-01-06'", rewrite_all=True)
    assert names(found) == [["a0", "a1"], ["b0", "b1"]]


def test_manifests_without_a_matching_partition_are_not_read(make: Any) -> None:
    rows = [file(1, partition={1000: "eu"}), file(2, partition={1000: "us", 1001: 5}), file(0)]
    table = make(*rows)
    found = plan_with_stats(table, partition_filter="region = 'eu'", rewrite_all=True)
    assert (found.manifests_kept, found.manifests_total) == (2, 3)
    assert found.plan.skipped == {"pruned-manifest": 1}


def test_an_invalid_filter_is_an_error(make: Any) -> None:
    with pytest.raises(UnknownColumnError):
        plan(make(*EVOLVED), partition_filter="nope = 1")


def test_an_unknown_spec_id_is_an_error(make: Any) -> None:
    with pytest.raises(UnknownSpecError, match="no partition spec 7; it has 0, 1, 2"):
        plan(make(*EVOLVED), spec=7)


def test_an_entry_of_a_spec_the_table_does_not_know_is_an_error(make: Any, tmp_path: Path) -> None:
    manifest_list = Path(make(*EVOLVED).metadata_location).parent / "list.avro"
    forgetful = tmp_path / "v2.metadata.json"
    forgetful.write_text(json.dumps(Layout(SCHEMA, (PLAIN, BY_REGION)).metadata(tmp_path, manifest_list, None)))
    with pytest.raises(CorruptMetadataError, match="spec 2"):
        plan(StaticTable.from_metadata(str(forgetful)), rewrite_all=True)


class TestStrict:
    """Strict mode refuses a candidate that is in the plan only because the filter could not be decided."""

    LAYOUT = Layout(SCHEMA, (PLAIN, BY_BUCKET, UNKNOWN))
    RANGE = "id > 5"

    def test_an_unevaluable_spec_is_refused_and_named(self, make: Any) -> None:
        table = make(file(4, partition={1003: "E1"}), layout=self.LAYOUT)
        with pytest.raises(StrictModeError, match="spec 4") as error:
            plan(table, partition_filter="region = 'eu'", strict=True, rewrite_all=True)
        assert error.value.exit_code == 4
        (found,) = error.value.context["undecided"]  # type: ignore[misc]
        assert (found["kind"], found["spec_id"], found["files"]) == ("unevaluable-spec", 4, 1)

    def test_a_range_over_a_bucket_is_refused(self, make: Any) -> None:
        table = make(file(3, partition={1002: 4}), file(0), layout=self.LAYOUT)
        with pytest.raises(StrictModeError, match="spec 3") as error:
            plan(table, partition_filter=self.RANGE, strict=True, rewrite_all=True)
        assert [found["spec_id"] for found in error.value.context["undecided"]] == [3]  # type: ignore[attr-defined]
        found = plan_with_stats(table, partition_filter=self.RANGE, rewrite_all=True)
        assert [(w.kind, w.context["spec_id"]) for w in found.warnings] == [("not-lifted", 3)]
        assert found.filter_stats == FilterStats(), "the counters count failures of projection and evaluation only"

    def test_an_unpartitioned_spec_is_not(self, make: Any) -> None:
        assert plan(make(file(0)), partition_filter=self.RANGE, strict=True, rewrite_all=True).groups

    def test_what_is_no_candidate_is_not(self, make: Any) -> None:
        table = make(file(3, 1000, partition={1002: 4}), layout=self.LAYOUT)
        assert plan(table, partition_filter=self.RANGE, strict=True).skipped == {"no-reason": 1}

    def test_bounds_decide_for_where_but_not_for_the_partition_filter(self, make: Any) -> None:
        bounds = {"lower_bounds": {1: to_bytes(LongType(), 0)}, "upper_bounds": {1: to_bytes(LongType(), 9)}}
        table = make(file(3, partition={1002: 4}, **bounds), layout=self.LAYOUT)
        assert plan(table, where=self.RANGE, strict=True, rewrite_all=True).groups
        with pytest.raises(StrictModeError):
            plan(table, partition_filter=self.RANGE, strict=True, rewrite_all=True)

    def test_where_without_bounds_is_refused(self, make: Any) -> None:
        table = make(file(3, partition={1002: 4}), layout=self.LAYOUT)
        with pytest.raises(StrictModeError, match="where does not restrict"):
            plan(table, where=self.RANGE, strict=True, rewrite_all=True)

    def test_a_part_that_only_rows_can_answer_does_not_matter_beside_one_that_is_decided(self, make: Any) -> None:
        table = make(file(1, partition={1000: "eu"}))
        decided = "region = 'eu' AND upper(region) = 'EU'"
        assert plan(table, partition_filter=decided, strict=True, rewrite_all=True).groups
        with pytest.raises(StrictModeError):
            plan(table, partition_filter="region = 'eu' OR upper(region) = 'EU'", strict=True, rewrite_all=True)


class TestSpecs:
    """Files keep their spec, or move to another one with the partition that metadata proves."""

    def test_files_keep_their_spec_by_default(self, make: Any) -> None:
        found = plan(make(*EVOLVED), rewrite_all=True)
        assert all(group.source_spec_ids == (group.output_spec_id,) for group in found.groups)

    def test_files_of_several_specs_are_packed_into_the_partition_their_bounds_prove(self, make: Any) -> None:
        rows = (
            file(1, 1000, {1000: "eu"}, file_path="b", **times(5 * DAY, 6 * DAY - 1)),
            file(2, 100, {1000: "eu", 1001: 5}, file_path="c"),
            file(2, 1000, {1000: "eu", 1001: 5}, file_path="good"),
            file(1, 1000, {1000: "us"}, file_path="spans", **times(5 * DAY, 6 * DAY)),
            file(0, 1000, file_path="nothing known"),
        )
        found = plan(make(*rows), spec="current")
        assert names(found) == [["b", "c"], ["spans", "nothing known"]]
        packed, unproven = found.groups
        assert (packed.proven, unproven.proven) == (True, False)
        assert (unproven.source_spec_ids, unproven.partition) == ((0, 1), {})
        assert packed.key == PartitionKey(2, ("eu", 5))
        assert (packed.spec_id, packed.source_spec_ids, packed.output_spec_id) == (None, (1, 2), 2)
        assert packed.partition == {"p1000": "eu", "p1001": "1970-01-06"}
        assert packed.reasons == {"spec-migration": 1, "too-small": 1}
        assert decisions(found)["good"] == "no-reason"

    def test_files_whose_rows_are_scattered_are_packed_by_where_they_begin(self, make: Any) -> None:
        """Whatever their old partitions; files without bounds come last."""
        rows = [
            file(1, 1000, {1000: region}, file_path=f"{region} {day}", **times(day * DAY, (day + 2) * DAY))
            for day in (7, 5)
            for region in ("us", "eu")
        ]
        table = make(*rows, file(0, 1000, file_path="nothing known"))
        (group,) = plan(table, spec="current").groups
        assert len(group.rows) == 5
        found = plan(table, spec="current", max_file_group_size_bytes=2000)
        assert names(found) == [["eu 5", "eu 7"], ["us 5", "us 7"], ["nothing known"]]

    def test_an_old_file_is_reason_enough_for_a_group(self, make: Any) -> None:
        found = plan(make(file(0, 1000, file_path="old"), file(2, 1000, {1000: "eu", 1001: 5})), spec=2)
        assert names(found) == [["old"]]
        assert plan(make(file(0, 1000), folder="keep")).groups == ()

    def test_everything_fits_into_the_unpartitioned_spec(self, make: Any) -> None:
        (group,) = plan(make(*EVOLVED), spec=0).groups
        assert (group.proven, len(group.rows), group.source_spec_ids) == (True, 8, (0, 1, 2))

    def test_a_spec_that_rows_cannot_be_partitioned_by_is_refused(self, make: Any) -> None:
        gone = spec(5, (1005, 77, IDENTITY))
        layout = Layout(
            SCHEMA, (PLAIN, UNKNOWN, gone), older_schemas=(Schema(NestedField(77, "x", LongType()), schema_id=7),)
        )
        table = make(file(0), layout=layout)
        with pytest.raises(InvalidOptionError, match="spec 4, partition field p1003: unknown cannot be computed"):
            plan(table, spec=4)
        with pytest.raises(InvalidOptionError, match="spec 5, partition field p1005: its source column was dropped"):
            plan(table, spec=5)
        assert plan(table, spec=0, rewrite_all=True).groups

    def test_nulls_are_a_partition_where_they_are_proven(self, make: Any) -> None:
        only_nulls = {"value_counts": {2: 10}, "null_value_counts": {2: 10}}
        found = plan(make(file(0, file_path="n", **only_nulls)), spec=1)
        assert found.groups[0].key == PartitionKey(1, (None,))
        assert found.groups[0].proven


def test_files_that_cannot_be_read_stay(make: Any) -> None:
    rows = (file(0, file_path="lance", file_format="LANCE"), file(0, file_path="secret", key_metadata=b"k"), file(0))
    found = plan_with_stats(make(*rows), rewrite_all=True)
    assert found.plan.skipped == {"unknown-format": 1, "encrypted": 1}
    assert [(w.kind, w.context["files"]) for w in found.warnings] == [("unreadable", 1), ("unreadable", 1)]


def test_sorting_may_be_expected_to_change_the_size(make: Any) -> None:
    rows = [file(0, 900) for _ in range(4)]
    assert plan(make(*rows), rewrite_all=True).groups[0].expected_outputs == 4
    halved = plan(make(*rows, folder="sort"), rewrite_all=True, strategy="sort", by=("id",), compression_factor=0.5)
    assert halved.groups[0].expected_outputs == 2


def test_warnings_are_limited_and_unique(make: Any) -> None:
    specs = [spec(n, (1000 + n, 2, pt.UnknownTransform(f"t{n}"))) for n in range(1, 31)]
    rows = [file(n, partition={1000 + n: "x"}) for n in range(1, 31) for _ in range(2)]
    found = plan_with_stats(make(*rows, layout=Layout(SCHEMA, tuple(specs))), where="region = 'eu'", rewrite_all=True)
    assert [warning.kind for warning in found.warnings] == ["unevaluable-spec"] * 20 + ["more"]
    assert found.warnings[-1].context == {"warnings": 10}
    assert {warning.context.get("files") for warning in found.warnings[:-1]} == {2}
    assert found.filter_stats == FilterStats(30, 0, 30, 60)


def test_a_sort_order_that_binpack_does_not_apply_is_reported(tmp_path: Path) -> None:
    table = create_table(open_catalog(tmp_path))
    with table.transaction() as change:
        change.update_sort_order().asc("id", pt.IdentityTransform()).commit()
    found = {w.kind: w.message for w in plan_with_stats(table.refresh(), rewrite_all=True).warnings}
    assert found == {"sort-order": "binpack does not apply the sort order of the table: use strategy sort"}
    assert plan_with_stats(table, rewrite_all=True, strategy="sort").warnings == ()
    assert plan_with_stats(table, where="id > 1000", rewrite_all=True).warnings == ()
