"""Explained plans: the pyramid, the effect of each conjunct, and one line of advice per pruning failure."""

from __future__ import annotations

import struct
import warnings
from io import StringIO
from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from rich.console import Console

from floeplan.scan.explain import advice, explain, reasons, spec_reasons
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.scan.report import scan_report
from tests.support.tables.archive import FileEntry, MetadataWriter

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "mission", StringType()),
    NestedField(2, "payload", LongType()),
    NestedField(3, "voltage", DoubleType()),
    NestedField(4, "note", StringType()),
    schema_id=0,
)
SPECS = (
    PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "mission"), spec_id=0),
    PartitionSpec(PartitionField(2, 1001, BucketTransform(16), "payload_bucket"), spec_id=1),
)
MISSIONS = 20


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> StaticTable:
    """Twenty missions of one file each, half partitioned by mission and half by bucket; `note` has no statistics."""
    root = tmp_path_factory.mktemp("explain") / "telemetry"
    writer = MetadataWriter(root, SCHEMA, SPECS)
    for number in range(MISSIONS):
        mission = f"m{number:02d}"
        spec_id = number * 2 // MISSIONS
        entry = FileEntry(
            path=f"{mission}.parquet",
            partition=(mission,) if spec_id == 0 else (number % 16,),
            record_count=1000,
            file_size=1_000_000,
            bounds={
                1: (mission.encode(), mission.encode()),
                2: (struct.pack("<q", number), struct.pack("<q", 10_000 + number)),
                3: (struct.pack("<d", 20.0), struct.pack("<d", 32.0)),
            },
        )
        writer.add_manifest(spec_id, [entry])
    return StaticTable.from_metadata(str(writer.finish()))


def plan(table: StaticTable, where: str | None = None) -> ScanPlan:
    return plan_scan(table, where, options=ScanOptions(footers=False, report=False))


GOLDEN = """\
where mission = 'm03' AND voltage > 25.0

 manifests      20  ██████████████████████░░░░░░░░░░░░░░░░░░         11  55 %
 files          20  ██░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░          1   5 %
 rows       20,000  ██░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░      1,000   5 %
 bytes                                                        976.6 KiB

 spec   partitioned by        manifests   files       bytes
 ──────────────────────────────────────────────────────────
    0   mission                    1/10    1/10   976.6 KiB
    1   bucket[16](payload)       10/10    0/10         0 B


 spec   what decides each conjunct
 ──────────────────────────────────────────────────
    0   mission = 'm03': exact on mission
        voltage > 25.0: bounds overlap in 1 file
    1   mission = 'm03': bounds decide all 10 files
        voltage > 25.0: bounds overlap in 10 files


 dropped by each conjunct alone   manifests   files   why no more are dropped
 ────────────────────────────────────────────────────────────────────────────────────────────────────────────
 mission = 'm03'                       9/20   10/11   partition values decide 1 file; bounds decide 10 files
 voltage > 25.0                        0/20    0/11   values are spread over all files: bounds overlap in 11
                                                      files

→ voltage > 25.0: values are spread over all files; cluster the files by this column: rewrite with sort or zorder
"""


def test_the_full_text_for_a_small_table(table: StaticTable) -> None:
    title, _, text = plan(table, "mission = 'm03' AND voltage > 25").explain().partition("\n")
    assert title == f"{table.metadata_location}  snapshot 1000020"
    assert text == GOLDEN


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("payload > 500", "range over bucket"),
        ("note = 'x'", "no statistics"),
        ("payload <> 503", "!= excludes almost nothing"),
        ("payload NOT IN (503)", "!= excludes almost nothing"),
        ("mission = 'm03' OR voltage > 30", "one side of OR matches everywhere"),
        ("mission = 'm03' OR upper(note) = 'X'", "one side of OR matches everywhere"),
        ("upper(mission) = 'M03'", "only rows can answer it"),
        ("voltage > 30", "values are spread over all files"),
    ],
)
def test_every_pruning_failure_has_an_advice(table: StaticTable, where: str, why: str) -> None:
    planned = plan(table, f"{where} AND mission < 'z'")
    (line, *others) = [line for line in advice(planned) if not line.startswith(("mission < ", "no manifest"))]
    assert not others
    assert f": {why}; " in line
    assert f"\n→ {line}\n" in planned.explain()


@pytest.mark.parametrize(
    "where",
    ["mission = 'm03'", "mission = 'm03' OR mission = 'm04'", "payload < 0", "mission <> 'm03'", "voltage > 10", None],
)
def test_scan_that_prunes_well_gets_no_advice(table: StaticTable, where: str | None) -> None:
    assert advice(plan(table, where)) == ()


def test_an_equality_on_a_bucket_field_gets_no_bucket_advice(table: StaticTable) -> None:
    assert all("range over bucket" not in line for line in advice(plan(table, "payload = 500")))


def test_manifests_that_never_prune_are_advised_on(tmp_path: Path) -> None:
    writer = MetadataWriter(tmp_path / "mixed", SCHEMA, SPECS[:1])
    for number in range(10):
        entries = [FileEntry(f"{number}-{m}.parquet", (m,), 10, 100, {1: (m.encode(), m.encode())}) for m in "abcdef"]
        writer.add_manifest(0, entries)
    planned = plan(StaticTable.from_metadata(str(writer.finish())), "mission = 'c'")
    assert planned.summary.manifests_kept == planned.summary.manifests_total == 10
    (line,) = advice(planned)
    assert "rewrite-manifests" in line


def test_notes_show_the_projection_for_each_spec(table: StaticTable) -> None:
    specs = {spec.spec_id: spec.notes for spec in plan(table, "mission = 'm03' AND payload > 3").specs}
    assert [(note.predicate, note.field, note.how) for note in specs[0]] == [
        ("mission = 'm03'", "mission", "exact"),
        ("payload > 3", None, "cannot"),
    ]
    assert [(note.field, note.how) for note in specs[1]] == [(None, "cannot"), ("payload_bucket", "cannot")]
    text = plan(table, "mission = 'm03' AND payload > 3").explain()
    assert "mission = 'm03': exact on mission" in text
    shown = " ".join(text.split())
    assert (
        "payload_bucket (range over bucket); all rows match in all 10 files (bounds), so none can be dropped" in shown
    )


EVERY_WAY = (
    "mission < 'm05' AND payload > 500 AND payload = 3 AND note = 'x' AND upper(mission) = 'M03'"
    " AND voltage IS NOT NULL AND (mission = 'm01' OR payload = 3) AND voltage <> 4"
    " AND voltage BETWEEN 21 AND 23 AND mission LIKE 'm%'"
)


def test_every_conjunct_and_every_spec_has_a_reason(table: StaticTable) -> None:
    planned = plan(table, EVERY_WAY)
    conjuncts = [effect.predicate for effect in planned.passes[1].effects]
    assert len(conjuncts) == 10
    assert all(reasons(planned))
    for spec in planned.specs:
        lines = spec_reasons(planned, spec)
        assert [line.partition(": ")[0] for line in lines] == conjuncts
        assert all(line.partition(": ")[2] for line in lines)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("mission = 'm03'", "partition values decide 1 file; bounds decide 10 files"),
        ("voltage > 25", "values are spread over all files: bounds overlap in 20 files"),
        ("voltage > 10", "all rows match in all 20 files (bounds), so none can be dropped"),
        ("mission < 'n'", "all rows match in all 20 files (partition values and bounds), so none can be dropped"),
        ("payload < 4", "bounds decide 16 files; bounds overlap in 4 files"),
        ("note = 'x'", "no statistics in 20 files"),
        ("upper(note) = 'X'", "only rows can answer it in 20 files"),
        ("mission = 'none'", "bounds decide all 10 files"),
    ],
)
def test_reasons_name_what_decides(table: StaticTable, where: str, reason: str) -> None:
    assert reasons(plan(table, where)) == (reason,)


def test_a_spec_whose_manifests_are_all_dropped_and_one_without_files_say_so(tmp_path: Path) -> None:
    writer = MetadataWriter(tmp_path / "t", SCHEMA, SPECS)
    writer.add_manifest(0, [FileEntry("a.parquet", ("a",), 10, 100, {1: (b"a", b"a")})])
    planned = plan(StaticTable.from_metadata(str(writer.finish())), "mission = 'b' AND voltage > 1")
    filed, empty = planned.specs
    assert spec_reasons(planned, filed) == (
        "mission = 'b': exact on mission",
        "voltage > 1.0: no manifest of this spec is left to read",
    )
    assert spec_reasons(planned, empty) == ("no files",)
    assert reasons(planned) == ("no manifest is left to read",) * 2


def test_manifests_without_live_files_are_not_dropped_by_a_conjunct(tmp_path: Path) -> None:
    writer = MetadataWriter(tmp_path / "t", SCHEMA, SPECS)
    writer.add_manifest(0, [FileEntry("a.parquet", ("a",), 10, 100, {1: (b"a", b"a")})])
    for _ in range(3):
        writer.add_manifest(0, [])
    planned = plan(StaticTable.from_metadata(str(writer.finish())), "mission = 'a' AND mission <> 'b'")
    assert planned.passes[0].total == 4
    assert [(effect.dropped, effect.decisions.total) for effect in planned.passes[0].effects] == [(0, 1)] * 2
    assert planned.explain().count("  0/1  ") == 4, "of manifests, and of files"


def test_numbers_are_whole_on_80_columns(tmp_path: Path) -> None:
    writer = MetadataWriter(tmp_path / "large", SCHEMA, SPECS)
    bounds = {2: (struct.pack("<q", 0), struct.pack("<q", 9)), 3: (struct.pack("<d", 0.0), struct.pack("<d", 9.0))}
    rows, size = 1_234_567_890_123, 987_654_321_987
    for spec_id, partition in ((0, ("a-mission-with-a-long-name",)), (1, (3,))):
        entries = [FileEntry(f"{spec_id}-{n}.parquet", partition, rows, size, bounds) for n in range(1000)]
        writer.add_manifest(spec_id, entries)
    planned = plan(StaticTable.from_metadata(str(writer.finish())), f"voltage > 5 AND {EVERY_WAY}")
    console = Console(file=StringIO(), width=80, highlight=False, markup=False, soft_wrap=True)
    console.print(explain(planned))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    tables = [line for line in text.splitlines() if line.startswith(" ")]
    assert max(map(len, tables)) <= 80
    assert "…" not in text
    for number in ("2,469,135,780,246,000", "2,000", "0/1,000", "1/2"):
        assert number in text


def test_no_warning_of_a_library_reaches_the_terminal(tmp_path: Path) -> None:
    writer = MetadataWriter(tmp_path / "constant", SCHEMA, SPECS[:1])
    for name, value in (("a", 3.0), ("b", 1e300), ("c", float("inf"))):
        same = struct.pack("<d", value)
        writer.add_manifest(0, [FileEntry(f"{name}.parquet", (name,), 10, 100, {3: (same, same)})])
    table = StaticTable.from_metadata(str(writer.finish()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for where in ("voltage > 10", "voltage <= 3", "voltage BETWEEN 1 AND 2e300", "voltage < 3"):
            scan_report(plan(table, where))


def test_text_has_no_escape_codes_and_no_trailing_blanks(table: StaticTable) -> None:
    text = plan(table, "mission = 'm03'").explain()
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
