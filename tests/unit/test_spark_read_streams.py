"""Streams without Spark: offsets, the content of batches, and exactly-once writes."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from floeplan.datasource import io
from floeplan.datasource.io import (
    BATCH_ID,
    QUERY_ID,
    AppendStream,
    FilesPartition,
    FloeplanReader,
    FloeplanWriter,
    SourceOptions,
    StreamAppends,
)
from floeplan.dml.commit import commit_changes
from floeplan.errors import BadInputError, CommitStateUnknownError, InvalidOptionError, UnsupportedError

pytestmark = pytest.mark.unit

SCHEMA = pa.schema({"k": pa.int64()})


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {
        "table": "db.t",
        "catalog": "streams",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "catalog.warehouse": tmp_path.as_uri(),
    }


@pytest.fixture
def table(options: dict[str, str]) -> Table:
    catalog = SqlCatalog("streams", uri=options["catalog.uri"], warehouse=options["catalog.warehouse"])
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", SCHEMA)
    yield made
    catalog.close()


def append(table: Table, *numbers: int) -> int:
    table.append(pa.table({"k": list(numbers)}, schema=SCHEMA))
    return table.metadata.current_snapshot_id or 0


def batch(stream: AppendStream, start: int, end: int) -> list[int]:
    shares = stream.partitions({"snapshot_id": start}, {"snapshot_id": end})
    return [k for share in shares for rows in stream.read(share) for k in rows.column(0).to_pylist()]


class TestReading:
    def test_offsets_are_snapshots(self, table: Table, options: dict[str, str]) -> None:
        stream = AppendStream(SourceOptions(options))
        assert stream.initialOffset() == stream.latestOffset() == {"snapshot_id": 0}
        assert batch(stream, 0, 0) == []
        first, second, third = append(table, 1, 2), append(table, 3), append(table, 4)
        assert stream.latestOffset() == {"snapshot_id": third}
        assert sorted(batch(stream, 0, third)) == [1, 2, 3, 4]
        assert batch(stream, first, second) == [3]
        assert batch(stream, third, third) == []

    def test_where_to_start_and_what_to_show(self, table: Table, options: dict[str, str]) -> None:
        first, last = append(table, 1), append(table, 2, 3)
        stream = AppendStream(SourceOptions({**options, "start-snapshot-id": str(first), "where": "k > 2"}))
        assert stream.initialOffset() == {"snapshot_id": first}
        assert batch(stream, first, last) == [3]

    def test_changes_of_rows_stop_it_unless_skipped(self, table: Table, options: dict[str, str]) -> None:
        first = append(table, 1, 2)
        table.delete("k = 1")
        last = append(table, 3)
        with pytest.raises(UnsupportedError, match=r"changes rows .* set streaming-skip-overwrite-snapshots to true"):
            batch(AppendStream(SourceOptions(options)), first, last)
        skipping = AppendStream(SourceOptions({**options, "streaming-skip-overwrite-snapshots": "true"}))
        assert batch(skipping, first, last) == [3]

    def test_a_gap_in_the_history_is_an_error(self, table: Table, options: dict[str, str]) -> None:
        last = append(table, 1)
        with pytest.raises(BadInputError, match="is not an ancestor of"):
            batch(AppendStream(SourceOptions(options)), 5, last)


class TestWriting:
    def stored(self, table: Table) -> list[int]:
        return sorted(table.refresh().scan().to_arrow()["k"].to_pylist())

    def files(self, table: Table) -> int:
        return len(list(Path(table.location().removeprefix("file://")).rglob("data/**/*.parquet")))

    def test_a_batch_is_committed_once(self, table: Table, options: dict[str, str]) -> None:
        writer = StreamAppends(SourceOptions({**options, "query-id": "q"}), overwrite=False)

        def write(number: int, *numbers: int) -> None:
            rows = pa.record_batch({"k": pa.array(numbers, pa.int64())})
            writer.commit([writer.write(iter([rows])), None], number)

        write(0, 1, 2)
        write(0, 1, 2)
        assert self.stored(table) == [1, 2]
        assert self.files(table) == 1
        append(table, 9)
        write(1, 3)
        write(0, 1, 2)
        assert self.stored(table) == [1, 2, 3, 9]
        summary = table.current_snapshot().summary.additional_properties  # type: ignore[union-attr]
        assert (summary[QUERY_ID], summary[BATCH_ID]) == ("q", "1")
        other = StreamAppends(SourceOptions({**options, "query-id": "another"}), overwrite=False)
        other.commit([other.write(iter([pa.record_batch({"k": pa.array([4])})]))], 0)
        assert self.stored(table) == [1, 2, 3, 4, 9]

    def test_a_batch_is_committed_once_though_its_snapshot_was_expired(
        self, table: Table, options: dict[str, str]
    ) -> None:
        writer = StreamAppends(SourceOptions({**options, "query-id": "q"}), overwrite=False)
        message = writer.write(iter([pa.record_batch({"k": pa.array([1])})]))
        writer.commit([message], 7)
        append(table, 9)
        table.refresh().maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
        assert len(table.refresh().snapshots()) == 1
        writer.commit([writer.write(iter([pa.record_batch({"k": pa.array([1])})]))], 7)
        assert self.stored(table) == [1, 9]
        writer.commit([writer.write(iter([pa.record_batch({"k": pa.array([2])})]))], 8)
        assert self.stored(table) == [1, 2, 9]

    def test_a_rolled_back_batch_is_written_again(self, table: Table, options: dict[str, str]) -> None:
        before = append(table, 9)
        writer = StreamAppends(SourceOptions({**options, "query-id": "q"}), overwrite=False)
        for expected in ([1, 9], [1, 9]):
            writer.commit([writer.write(iter([pa.record_batch({"k": pa.array([1])})]))], 0)
            assert self.stored(table) == expected
        table.refresh().manage_snapshots().set_current_snapshot(before).commit()
        assert self.stored(table) == [9]
        writer.commit([writer.write(iter([pa.record_batch({"k": pa.array([1])})]))], 0)
        assert self.stored(table) == [1, 9]

    def test_an_aborted_batch_leaves_nothing(self, table: Table, options: dict[str, str]) -> None:
        writer = StreamAppends(SourceOptions({**options, "query-id": "q"}), overwrite=False)
        writer.abort([writer.write(iter([pa.record_batch({"k": pa.array([1])})])), None], 0)
        assert self.files(table) == 0

    @pytest.mark.parametrize("streams", [False, True], ids=["batch", "stream"])
    def test_spark_aborts_after_a_commit_of_unknown_state(
        self, table: Table, options: dict[str, str], streams: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every task has sent its message, so the commit was tried, and the table may have the files."""

        def commit_and_lose_the_response(*arguments: Any, **named: Any) -> None:
            commit_changes(*arguments, **named)
            raise CommitStateUnknownError("it may have been committed")

        monkeypatch.setattr(io, "commit_changes", commit_and_lose_the_response)
        writer = (StreamAppends if streams else FloeplanWriter)(
            SourceOptions({**options, "query-id": "q"}), overwrite=False
        )
        messages, batch_id = [writer.write(iter([pa.record_batch({"k": pa.array([1])})]))], [0] if streams else []
        with pytest.raises(CommitStateUnknownError):
            writer.commit(messages, *batch_id)
        writer.abort(messages, *batch_id)
        assert self.stored(table) == [1]

    def test_a_query_without_a_name_is_refused(self, table: Table, options: dict[str, str]) -> None:
        writer = StreamAppends(SourceOptions(options), overwrite=False)
        message = writer.write(iter([pa.record_batch({"k": pa.array([1])})]))
        with pytest.raises(InvalidOptionError, match="query-id"):
            writer.commit([message], 0)
        assert self.files(table) == 0
        with pytest.raises(InvalidOptionError, match="a stream appends"):
            StreamAppends(SourceOptions(options), overwrite=True)


class TestBatches:
    def test_written_rows_are_read_back(self, table: Table, options: dict[str, str]) -> None:
        writer = FloeplanWriter(SourceOptions(options), overwrite=False)
        rows = [pa.record_batch({"k": pa.array([n, n + 10])}) for n in range(3)]
        writer.commit([writer.write(iter([batch])) for batch in rows])
        reader = FloeplanReader(SourceOptions({**options, "where": "k >= 10"}))
        shares = reader.partitions()
        assert sorted(k for share in shares for part in reader.read(share) for k in part.column(0).to_pylist()) == [
            10,
            11,
            12,
        ]

    def test_an_empty_table_is_one_empty_share(self, table: Table, options: dict[str, str]) -> None:
        reader = FloeplanReader(SourceOptions(options))
        (share,) = reader.partitions()
        assert isinstance(share, FilesPartition)
        assert list(reader.read(share)) == []
