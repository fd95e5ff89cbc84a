"""Code blocks of Markdown documents, and a small runner for them.

Blocks of a document run in order, in one folder and one namespace, with a table ``db.events`` that has been
partitioned three ways. ``python`` blocks are executed, ``sql`` blocks handed to Spark, lines of ``shell`` blocks run
one by one: those of Floeplan in this process, so that they share its Spark session, all others in bash. Every other
block only illustrates. ``python -m tests.support.documents PAGE`` runs a page here, on a session of its own.
"""

from __future__ import annotations

import glob
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
EXECUTED = ("python", "shell", "sql")
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_BY_BASH = re.compile(r"[|>;]|\$\(")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("customer", pa.int64()),
        ("amount", pa.float64()),
        ("v", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, and the line it begins at."""

    language: str
    text: str
    line: int


def blocks(document: Path) -> list[Block]:
    """The blocks of a document that are executed."""
    text = document.read_text()
    found = [
        Block(match[2], re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE), text[: match.start()].count("\n") + 1)
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if block.language in EXECUTED]


def needs_spark(document: Path) -> bool:
    """Whether a block names a session or a command that starts one."""
    words = ("spark", "floeplan audit")
    return any(block.language == "sql" or any(word in block.text for word in words) for block in blocks(document))


def needs_workers(document: Path) -> bool:
    """Whether workers of Spark look for a catalog by themselves, so that they must find the one of this reader."""
    return any(word in block.text for block in blocks(document) for word in ('format("floeplan")', "USING floeplan"))


def rows(first: int, count: int) -> pa.Table:
    """Events of one year, an hour apart."""
    ids = range(first, first + count)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    columns = {
        "id": list(ids),
        "region": [("eu", "us", "ap")[number % 3] for number in ids],
        "ts": [start + timedelta(hours=number) for number in ids],
        "customer": [number * 37 % 101 for number in ids],
        "amount": [float(number % 50) for number in ids],
        "v": [number / 2 for number in ids],
    }
    return pa.table(columns, schema=SCHEMA)


@dataclass(slots=True)
class Reader:
    """Somebody who reads documents and types what they say."""

    folder: Path
    spark: SparkSession | None = None
    names: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        """The table, the files and the names that documents speak of."""
        opened = open_catalog()
        opened.create_namespace("db")
        table = opened.create_table("db.events", SCHEMA, properties={"format-version": "2"})
        fp.append(table, rows(0, 700))
        from_snapshot = table.refresh().metadata.current_snapshot_id
        for number, statement in enumerate(("ADD PARTITION FIELD region", "ADD PARTITION FIELD days(ts)"), start=1):
            fp.sql(None, f"ALTER TABLE db.events {statement}", catalog=opened)
            fp.append("db.events", rows(700 * number, 700))
        for where in ("region = 'eu' AND ts >= '2024-01-20'", "id BETWEEN 100 AND 110", "customer = 7"):
            fp.plan_scan("db.events", where)
        news = pa.concat_tables([rows(0, 5), rows(5000, 5)])
        (self.folder / "new").mkdir()
        for name in ("news.parquet", "new/a.parquet", "file.parquet"):
            pq.write_table(news, self.folder / name, write_page_index=True)
        self.names |= {"fp": fp, "arrow_table": rows(6000, 20), "news": news, "source": news}
        self.names |= {"spark": self.spark, "from_snapshot": from_snapshot, "to_snapshot": None, "__name__": "docs"}
        if self.spark is not None:
            self.spark.createDataFrame(news).createOrReplaceTempView("news")
            self.names["df"] = self.spark.createDataFrame(rows(7000, 10).select(["id", "region", "ts", "v"]))

    def run(self, document: Path) -> None:
        """Run all blocks; an error says where it was."""
        for block in blocks(document):
            try:
                self._run(block, document)
            except Exception as error:
                error.add_note(f"{document.name}:{block.line}\n{block.text}")
                raise

    def _run(self, block: Block, document: Path) -> None:
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(document), "exec"), self.names)
        elif block.language == "sql":
            assert self.spark is not None
            for statement in filter(str.strip, block.text.split(";\n")):
                self.spark.sql(statement.rstrip().rstrip(";"))
        else:
            for line in block.text.replace("\\\n", " ").splitlines():
                self._type(line)

    def _type(self, line: str) -> None:
        """Run one line of a shell; ``doctor`` may find something."""
        words = shlex.split(line, comments=True)
        if not words:
            return
        if words[0] == "floeplan" and not _BY_BASH.search(re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", line)):
            code = main([name for word in words[1:] for name in _expanded(word)])
        else:
            code = subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=self.folder).returncode
        assert code == 0 or (code == 1 and words[1] == "doctor"), f"exit code {code}: {line}"


def _expanded(word: str) -> list[str]:
    return sorted(glob.glob(word)) if word.endswith("*.parquet") else [word]


def notebook_cells(path: Path) -> list[str]:
    """The code cells of a notebook."""
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


if __name__ == "__main__":
    from floeplan.spark.session import open_session

    alone = Reader(Path.cwd(), open_session("local[2]"))
    alone.prepare()
    alone.run(Path(sys.argv[1]))
