"""Sizes, packing and option checks as in Iceberg Java 1.12."""

from __future__ import annotations

import numpy as np
import pytest

from floeplan.errors import InvalidOptionError, UnknownOptionError
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.groups import next_fit
from floeplan.rewrite.plan.options import JobOrder, RewriteOptions
from tests.support.spark.iceberg_java import PackVector, SizeVector, pack, pack_vectors, size_vectors

pytestmark = pytest.mark.unit

MIB = 1024**2


@pytest.mark.parametrize("vector", size_vectors(), ids=lambda v: f"{v.input_bytes} of {v.target}")
def test_sizes_are_those_of_java(vector: SizeVector) -> None:
    sizes = FileSizes(vector.target, vector.smallest, vector.largest)
    found = (sizes.expected_outputs(vector.input_bytes), sizes.split_size(vector.input_bytes), sizes.write_max)
    assert found == (vector.expected_outputs, vector.split_size, vector.write_max)


@pytest.mark.parametrize("vector", pack_vectors(), ids=lambda v: str(v.items))
def test_the_packer_of_the_tests_is_that_of_java(vector: PackVector) -> None:
    rules = (vector.target, vector.lookback, vector.largest_bin_first, vector.max_items)
    assert pack(vector.items, *rules) == vector.packed
    from_end = pack(vector.items[::-1], *rules)
    assert [b[::-1] for b in from_end[::-1]] == vector.packed_from_end


def test_files_are_packed_as_java_packs_them_one_open_group_at_a_time() -> None:
    vectors = [v for v in pack_vectors() if v.lookback == 1 and not v.largest_bin_first]
    assert len(vectors) >= 5
    for vector in vectors:
        cuts = next_fit(np.array(vector.items), np.array([0]), vector.target, vector.max_items)
        assert [part.tolist() for part in np.split(np.array(vector.items), cuts[1:])] == vector.packed


def test_sizes_default_to_those_of_the_table_and_iceberg() -> None:
    assert FileSizes.of(RewriteOptions(), {}) == FileSizes(512 * MIB, 402653184, 966367641)
    assert FileSizes.of(RewriteOptions(), {"write.target-file-size-bytes": "134217728"}) == FileSizes(
        128 * MIB, 100663296, 241591910
    )
    chosen = RewriteOptions(target_file_size_bytes=100, min_file_size_bytes=0, max_file_size_bytes=101)
    assert FileSizes.of(chosen, {}) == FileSizes(100, 0, 101)


def test_defaults_are_those_of_iceberg() -> None:
    options = RewriteOptions()
    assert (options.min_input_files, options.rewrite_all, options.spec) == (5, False, "keep")
    assert (options.max_file_group_size_bytes, options.max_file_group_input_files) == (107374182400, 2**63 - 1)
    assert (options.delete_file_threshold, options.delete_ratio_threshold) == (2**31 - 1, 0.3)
    assert (options.max_files_to_rewrite, options.rewrite_job_order) == (None, JobOrder.NONE)


def test_options_are_taken_under_the_names_iceberg_gives_them() -> None:
    given = {
        "target-file-size-bytes": "100",
        "rewrite-all": "true",
        "delete-ratio-threshold": "0.5",
        "rewrite-job-order": "bytes-desc",
        "output-spec-id": "3",
    }
    options = RewriteOptions(strict=True).with_options(given)
    assert (options.target_file_size_bytes, options.rewrite_all, options.delete_ratio_threshold) == (100, True, 0.5)
    assert (options.rewrite_job_order, options.spec, options.strict) == (JobOrder.BYTES_DESC, 3, True)


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(UnknownOptionError, match="min-input-file'; did you mean min-input-files") as error:
        RewriteOptions().with_options({"min-input-file": "3"})
    assert error.value.context == {"option": "min-input-file"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target-file-size-bytes", "0"),
        ("min-file-size-bytes", "-1"),
        ("min-input-files", "0"),
        ("max-file-group-size-bytes", "0"),
        ("max-file-group-input-files", "0"),
        ("delete-file-threshold", "-1"),
        ("delete-ratio-threshold", "0"),
        ("delete-ratio-threshold", "1.01"),
        ("delete-ratio-threshold", "nan"),
        ("max-files-to-rewrite", "0"),
        ("rewrite-job-order", "sideways"),
        ("rewrite-all", "maybe"),
        ("min-input-files", "many"),
    ],
)
def test_values_that_iceberg_refuses_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"'{name}'"):
        RewriteOptions().with_options({name: value})


@pytest.mark.parametrize(("smallest", "largest"), [(100, 200), (10, 100)])
def test_the_target_lies_between_the_smallest_and_the_largest_size(smallest: int, largest: int) -> None:
    options = RewriteOptions(target_file_size_bytes=100, min_file_size_bytes=smallest, max_file_size_bytes=largest)
    with pytest.raises(InvalidOptionError, match="all new files would be too"):
        FileSizes.of(options, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "shuffle"}, "unknown strategy 'shuffle'"),
        ({"strategy": "zorder"}, "needs the columns"),
        ({"strategy": "binpack", "by": ("a",)}, "takes no columns"),
        ({"spec": "newest"}, "must be keep, current or a spec id"),
        ({"spec": 1, "target_spec_id": 2}, "spec is 1 but target-spec-id is 2"),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        RewriteOptions(**options)  # type: ignore[arg-type]
