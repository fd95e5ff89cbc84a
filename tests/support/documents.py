"""Code blocks of Markdown documents, and a small runner for them.

The blocks of a document run in order, in one folder and one namespace, with a table ``db.events`` that has three
partition specs. ``python`` blocks are executed, ``sql`` blocks run on Spark, and ``shell`` blocks run line by line:
``floeplan`` commands in this process, to share its Spark session, all others in bash. Blocks in other languages are not
run. ``python -m tests.support.documents PAGE`` runs one page with a new Spark session.
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
    """A fenced block: its language, text and first line number."""

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
    """Whether a block uses a Spark session or a command that starts one."""
    words = ("spark", "floeplan audit")
    return any(block.language == "sql" or any(word in block.text for word in words) for block in blocks(document))


def needs_workers(document: Path) -> bool:
    """Whether Spark workers open the catalog themselves, and so need its configuration."""
    return any(word in block.text for block in blocks(document) for word in ('format("floeplan")', "USING floeplan"))


def rows(first: int, count: int) -> pa.Table:
    """Events, one per hour."""
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
class DocumentRunner:
    """Runs the blocks of documents."""

    folder: Path
    spark: SparkSession | None = None
    names: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        """Create the table, files and Python names that documents use."""
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
        """Run all blocks; an error names the document and line."""
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
                self._run_line(line)

    def _run_line(self, line: str) -> None:
        """Run one shell line; ``doctor`` may exit with 1."""
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
    from pyspark.sql import SparkSession

    from tests.support.servers import DRIVER

    builder = SparkSession.builder.master("local[2]")
    for key, value in DRIVER.items():
        builder = builder.config(key, value)
    alone = DocumentRunner(Path.cwd(), builder.getOrCreate())
    alone.prepare()
    alone.run(Path(sys.argv[1]))
