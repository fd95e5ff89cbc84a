"""Parts of the Spark reader that need no Spark: types, filters, names, the file log, delete bitmaps."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyspark.sql.pandas.types import to_arrow_schema

from floeplan.datasource.io import SourceOptions
from floeplan.errors import InvalidOptionError, UnknownOptionError, UnsupportedError
from floeplan.predicate.ir import Between, BloomEq, Cmp, CmpOp, Column, InList, Not, Or, StartsWith
from floeplan.predicate.literals import Value
from floeplan.scan.projection import arrow_schema
from floeplan.spark.read.columns import NameHistory
from floeplan.spark.read.deletes import CACHE_BYTES, RowTest, cached_bitmap, cached_row_test, word_counts, word_offsets
from floeplan.spark.read.file_log import _lines
from floeplan.spark.read.reader import ReadOptions
from floeplan.spark.types import spark_schema, spark_sql, to_spark_arrow
from floeplan.tasks.shipping import write_package

pytestmark = pytest.mark.unit


def column(type_: PrimitiveType, *path: str) -> Column:
    return Column(1, type_, path or ("c",))


class TestFilters:
    @pytest.mark.parametrize(
        ("type_", "value", "text"),
        [
            (IntegerType(), 7, "INT('7')"),
            (IntegerType(), 2**40, f"BIGINT('{2**40}')"),
            (LongType(), -(2**63), f"BIGINT('{-(2**63)}')"),
            (DoubleType(), float("nan"), "DOUBLE('nan')"),
            (DoubleType(), 0.1, "DOUBLE('0.1')"),
            (DecimalType(9, 2), Decimal("-4.60"), "CAST('-4.60' AS DECIMAL(9, 2))"),
            (DecimalType(3, 2), Decimal("12345.00"), "CAST('12345.00' AS DECIMAL(7, 2))"),
            (StringType(), "it's \\", "'it\\'s \\\\'"),
            (UUIDType(), UUID(int=1).bytes, f"'{UUID(int=1)}'"),
            (TimestamptzType(), 1, "TIMESTAMP '1970-01-01 00:00:00.000001Z'"),
        ],
    )
    def test_literals_have_their_type(self, type_: PrimitiveType, value: Value, text: str) -> None:
        assert spark_sql(Cmp(column(type_), CmpOp.EQ, value)) == f"(`c` = {text})"

    def test_nodes(self) -> None:
        number, text = column(LongType(), "a`b", "c"), column(StringType())
        assert spark_sql(InList(number, ())) == "(nullif(`a``b`.`c` IS NULL, TRUE))"
        assert spark_sql(InList(text, ("x",), negated=True)) == "(`c` NOT IN ('x'))"
        assert spark_sql(StartsWith(text, "50%", negated=True)) == "(NOT startswith(`c`, '50%'))"
        assert spark_sql(Not(BloomEq(text, "x"))) == "(NOT (`c` = 'x'))"
        between = Between(column(IntegerType()), 1, 2, inclusive=False)
        assert spark_sql(Or((between, Cmp(text, CmpOp.NE, "x")))) == (
            "((`c` > INT('1') AND `c` < INT('2')) OR (`c` <> 'x'))"
        )


class TestTypes:
    def test_rows_as_spark_takes_them(self) -> None:
        inside = StructType(NestedField(4, "u", UUIDType(), required=False))
        schema = Schema(
            NestedField(1, "at", TimestampNanoType(), required=False),
            NestedField(2, "many", ListType(3, inside, element_required=False), required=False),
        )
        timestamp = datetime(1969, 12, 31, 23, 59, 59, 999999)
        wanted = arrow_schema(schema).field("many").type
        ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID(int=5).bytes, None], pa.binary(16)))
        structs = pa.StructArray.from_arrays([ids], fields=list(wanted.value_type), mask=pa.array([False, True]))
        lists = pa.LargeListArray.from_arrays(
            pa.array([0, 2, 2, 2]), structs, type=pa.large_list(wanted.value_field), mask=pa.array([False, True, False])
        )
        rows = pa.table({"at": pa.array([-1, None, 1999], pa.timestamp("ns")), "many": lists})
        shown = to_spark_arrow(rows, to_arrow_schema(spark_schema(schema)))
        assert shown["at"].to_pylist() == [timestamp, None, datetime(1970, 1, 1, 0, 0, 0, 1)]
        assert shown["many"].to_pylist() == [[{"u": str(UUID(int=5))}, None], None, []]

    def test_a_type_spark_does_not_have_names_the_column(self) -> None:
        inside = StructType(NestedField(2, "t", TimeType(), required=False))
        with pytest.raises(UnsupportedError, match=r"no type for column s\.t of type time"):
            spark_schema(Schema(NestedField(1, "s", inside, required=False)))


def metadata_of(*schemas: Schema, last_column_id: int = 9) -> TableMetadata:
    made = new_table_metadata(Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///t")
    document = json.loads(made.model_dump_json())
    document["schemas"] = [json.loads(schema.model_dump_json()) for schema in schemas]
    document |= {"current-schema-id": schemas[-1].schema_id, "last-column-id": last_column_id}
    return TableMetadataUtil.parse_raw(json.dumps(document))


def fields(schema_id: int, **ids: int) -> Schema:
    return Schema(*(NestedField(i, name, LongType(), required=False) for name, i in ids.items()), schema_id=schema_id)


class TestVeils:
    def substituted(self, *schemas: Schema, last_column_id: int = 9) -> set[str]:
        history = NameHistory(metadata_of(*schemas, last_column_id=last_column_id), schemas[-1])
        return {field.name for field in schemas[-1].fields if history.needs_substitute(field)}

    def test_only_columns_whose_name_another_one_had(self) -> None:
        now = fields(1, a=2, c=1, z=9)
        assert self.substituted(fields(0, a=1, b=2, z=9), now) == {"a"}

    def test_names_are_compared_without_case(self) -> None:
        assert self.substituted(fields(0, a=1, z=9), fields(1, A=2, z=9)) == {"A"}

    def test_names_spark_might_take_for_something_else(self) -> None:
        assert self.substituted(fields(0, _metadata=1, **{"a.b": 2}, ok=9)) == {"_metadata", "a.b"}

    def test_all_columns_when_a_schema_or_a_column_is_missing(self) -> None:
        assert self.substituted(fields(1, a=1, b=9)) == {"a", "b"}
        assert self.substituted(fields(0, a=1, b=9), last_column_id=10) == {"a", "b"}
        assert self.substituted(fields(0, a=1, b=9)) == set()

    def test_the_prefix_is_one_no_column_has(self) -> None:
        assert NameHistory(metadata_of(fields(0, __f1=9)), fields(0, __f1=9)).prefix == "___f"

    def test_nested_columns_with_renamed_or_floating_fields(self) -> None:
        def struct(schema_id: int, **inner: PrimitiveType) -> Schema:
            within = StructType(*(NestedField(8, name, t, required=False) for name, t in inner.items()))
            return Schema(NestedField(9, "s", within, required=False), schema_id=schema_id)

        assert self.substituted(struct(0, x=LongType())) == set()
        assert self.substituted(struct(0, x=LongType()), struct(1, y=LongType())) == {"s"}
        assert self.substituted(struct(0, x=DoubleType())) == {"s"}


def test_the_log_escapes_what_urls_cannot_hold() -> None:
    paths = pa.array(["/plain/a.parquet", 'file:///b c%41[é]"\\.parquet', "s3://bucket/k=v/x.parquet"])
    lines = [json.loads(line) for line in _lines(paths, np.array([1, 2, 3]), np.array([0, 64, 2**40])).splitlines()]
    assert [line["path"] for line in lines] == [
        "file:///plain/a.parquet",
        "file:///b%20c%2541%5B%C3%A9%5D%22%5C.parquet",
        "s3://bucket/k=v/x.parquet",
    ]
    assert [line["size"] for line in lines] == [1, 2, 3]


def test_tags_are_decoded_from_times() -> None:
    tags = np.unique(np.concatenate([np.arange(5000), np.random.default_rng(1).integers(0, 2**42, 5000)]))
    lines = _lines(pa.array(["/x"] * len(tags)), np.ones_like(tags), tags).splitlines()
    assert [json.loads(line)["modificationTime"] * 1000 >> 10 for line in lines] == tags.tolist()


class TestWords:
    def test_files_have_their_own(self) -> None:
        assert word_counts(np.array([0, 1, 64, 65, 129, 256, 257])).tolist() == [1, 1, 1, 2, 4, 4, 8]
        assert word_offsets(np.array([1, 64, 65, 0])).tolist() == [2, 3, 0, 4]

    def test_no_two_rows_share_a_bit(self) -> None:
        random = np.random.default_rng(3)
        for _ in range(50):
            rows = random.integers(0, 700, random.integers(1, 30))
            starts = np.repeat(word_offsets(rows), rows)
            numbers = np.concatenate([np.arange(count) for count in rows])
            bits = (starts | (numbers >> 6)) * 64 + (numbers & 63)
            assert len(np.unique(bits)) == rows.sum()
            assert bits.max(initial=-1) < word_counts(rows).sum() * 64


class TestHeldWords:
    @pytest.fixture(autouse=True)
    def _nothing_held(self) -> Iterator[None]:
        cached_bitmap.cache_clear()
        yield
        cached_bitmap.cache_clear()

    def test_the_least_recently_used_are_evicted_first(self) -> None:
        made, third = [], np.zeros(CACHE_BYTES // 8 // 3, dtype=np.int64)

        def get(key: str) -> None:
            cached_bitmap(key, lambda: made.append(key) or third)  # type: ignore[func-returns-value]

        for key in "abcacdab":
            get(key)
        assert "".join(made) == "abcdb"
        assert sorted(cached_bitmap.cache) == ["a", "b", "d"]
        cached_bitmap.cache_clear()
        get("a")
        assert "".join(made) == "abcdba"

    def test_values_beyond_the_limit_are_not_cached(self) -> None:
        large = np.zeros(CACHE_BYTES // 8 + 1, dtype=np.int64)
        cached_bitmap("small", lambda: large[:1])
        assert cached_bitmap("large", lambda: large) is large
        assert list(cached_bitmap.cache) == ["small"]

    def test_creating_a_value_does_not_block_others(self) -> None:
        inner = np.arange(1)
        with ThreadPoolExecutor(1) as thread:
            outer = cached_bitmap("outer", lambda: thread.submit(cached_bitmap, "inner", lambda: inner).result(60) + 1)
        assert outer.tolist() == [1]
        assert sorted(cached_bitmap.cache) == ["inner", "outer"]

    def test_a_session_does_not_get_the_expressions_of_another(self) -> None:
        cached_row_test.cache_clear()
        made = [RowTest(object(), CACHE_BYTES // 2) for _ in range(3)]  # type: ignore[arg-type]
        sessions: list[Any] = ["first", "second", "third"]
        try:
            for session, test in zip(sessions, made, strict=True):
                assert cached_row_test(session, "bits", lambda test=test: test) is test
            assert cached_row_test(sessions[2], "bits", lambda: made[0]) is made[2]
            assert cached_row_test(sessions[0], "bits", lambda: made[1]) is made[1], "beyond the bytes that are held"
        finally:
            cached_row_test.cache_clear()


class TestOptions:
    def test_bad_ones_are_refused(self) -> None:
        with pytest.raises(InvalidOptionError, match="path is 'fast' but must be one of auto, native, arrow"):
            ReadOptions(path="fast")  # type: ignore[arg-type]
        with pytest.raises(UnknownOptionError, match="no option 'wher'"):
            SourceOptions({"wher": "x"})
        with pytest.raises(InvalidOptionError, match="snapshot-id is 'x' but must be a number"):
            SourceOptions({"snapshot-id": "x"}).number("snapshot-id")
        with pytest.raises(InvalidOptionError, match="needs the option 'table'"):
            SourceOptions({}).table()

    def test_names_are_taken_in_any_case(self) -> None:
        options = SourceOptions({"Snapshot-Id": "5", "COLUMNS": "a, b"})
        assert options.number("snapshot-id") == 5
        assert options.columns == ["a", "b"]


def test_the_shipped_package_works_without_compiled_kernels(tmp_path: Path) -> None:
    archive = tmp_path / "floeplan.zip"
    write_package(archive)
    assert not [name for name in zipfile.ZipFile(archive).namelist() if name.endswith(".so")]
    program = (
        f"import sys; sys.path = [p for p in sys.path if 'floeplan' not in p and not p.endswith('/src')]; "
        f"sys.path.insert(0, {str(archive)!r}); import floeplan.scan.read as read; print(read.__file__)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert run.stdout.startswith(str(archive))
