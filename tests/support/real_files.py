"""Tables with a few real Parquet files under hand-made manifests: data, position deletes, keys, deletion vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from floeplan.scan.delete_files import encode_deletion_vector
from tests.support.written_tables import Layout

POSITIONS = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)
Rows = Sequence[Mapping[str, Any]]


@dataclass
class Files:
    """Writes files into a folder and remembers what manifests are to say of them."""

    folder: Path
    said: list[dict[str, Any]] = field(default_factory=list)

    def data(self, rows: Rows, schema: Schema, *, name: str = "", group: int | None = None, **said: Any) -> str:
        """A data file with the columns of a schema; returns its path."""
        return self._parquet(name or f"data{len(self.said)}", rows, schema, group, {"sequence_number": 1} | said)

    def keys(self, rows: Rows, schema: Schema, ids: Sequence[int], **said: Any) -> str:
        """An equality delete on these field ids."""
        entry = {"content": 2, "equality_ids": list(ids), "sequence_number": 2} | said
        return self._parquet(f"keys{len(self.said)}", rows, schema, None, entry)

    def positions(self, gone: Sequence[tuple[str, int]], **said: Any) -> str:
        """A position delete."""
        rows = [{"file_path": path, "pos": position} for path, position in gone]
        entry = {"content": 1, "sequence_number": 2} | said
        return self._parquet(f"positions{len(self.said)}", rows, POSITIONS, None, entry)

    def vector(self, path: str, gone: Sequence[int], **said: Any) -> str:
        """A deletion vector for a data file."""
        blob = encode_deletion_vector(BitMap64(gone))
        target = self.folder / f"vector{len(self.said)}.puffin"
        target.write_bytes(b"PFA1" + blob + b"PFA1")
        entry = {
            "content": 1,
            "file_format": "PUFFIN",
            "file_path": str(target),
            "referenced_data_file": path,
            "content_offset": 4,
            "content_size_in_bytes": len(blob),
            "record_count": len(gone),
            "sequence_number": 2,
        }
        self.said.append(entry | said)
        return str(target)

    def table(self, layout: Layout) -> Table:
        """A table of all these files."""
        number = len(list(self.folder.glob("metadata*")))
        return layout.write_table(self.folder / f"metadata{number}", layout.entries(self.said))

    def _parquet(self, name: str, rows: Rows, schema: Schema, group: int | None, said: dict[str, Any]) -> str:
        path = self.folder / f"{name}.parquet"
        made = pa.Table.from_pylist([dict(row) for row in rows], schema=schema_to_pyarrow(schema))
        pq.write_table(made, path, row_group_size=group, write_page_index=True)
        self.said.append(
            {"file_path": str(path), "record_count": len(rows), "file_size_in_bytes": path.stat().st_size} | said
        )
        return str(path)
