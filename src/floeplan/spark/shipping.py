"""Sending the package to executors that lack it.

The package travels as a zip of its Python files; compiled kernels stay behind, and their Python stand-ins do the work
there. What it stands on (PyIceberg, pyarrow, NumPy, …) must be installed where the tasks run.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import floeplan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ship(spark: SparkSession) -> None:
    """Make ``import floeplan`` work in the tasks of a session, classic or Connect."""
    with tempfile.TemporaryDirectory(prefix="floeplan-ship-") as folder:
        archive = Path(folder) / "floeplan.zip"
        write_package(archive)
        spark.addArtifacts(str(archive), pyfile=True)


def write_package(archive: Path) -> None:
    """Zip the package as it is installed here."""
    (home,) = floeplan.__path__
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(Path(home).rglob("*.py")):
            bundle.write(file, Path("floeplan") / file.relative_to(home))
