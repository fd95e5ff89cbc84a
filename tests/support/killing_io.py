"""A FileIO that kills one worker in the middle of writing a data file: as when a machine takes a process away.

It does so once, for the first worker that begins a Parquet file while the file ``KILL`` names is there; whoever takes
that file away dies. The process that opened the table is spared.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

KILL, SPARED = "test.kill", "test.spared"
NAME = f"{__name__}.KillingFileIO"


class KillingFileIO(PyArrowFileIO):
    """See the module's text."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        if location.endswith(".parquet") and str(os.getpid()) != self.properties[SPARED]:
            try:
                Path(self.properties[KILL]).unlink()
            except FileNotFoundError:
                return output
            with output.create() as half:
                half.write(b"PAR1 and no more")
            os.kill(os.getpid(), signal.SIGKILL)
        return output
