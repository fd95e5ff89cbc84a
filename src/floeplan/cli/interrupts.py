"""Ctrl-C and SIGTERM: the program reports at once that it stops, and commands clean up and report what was committed.

Rule: the first signal raises `KeyboardInterrupt`, delayed until the end of a commit that is running; a second one acts
as it would without this module. Signals that are ignored, as in background jobs, stay ignored.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopHandler:
    """The handler of one signal; ``before`` is the handler that it replaces."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def announce(self) -> None:
        """Say that the program stops. A handler may interrupt a write to stderr, so that it uses no buffer."""
        os.write(sys.stderr.fileno(), "floeplan: stopping…\n".encode())

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.announce()
        signal.signal(number, self.before)
        # Spark's handler of SIGINT cancels its jobs; Python's raises KeyboardInterrupt.
        interrupt = signal.getsignal(signal.SIGINT)
        handler = interrupt.before if isinstance(interrupt, StopHandler) else interrupt
        if callable(handler):
            handler(number, frame)
        raise KeyboardInterrupt


def install() -> None:
    """Handle the signals that are not ignored; again after Spark has installed a handler of its own."""
    for number in SIGNALS:
        before = signal.getsignal(number)
        if before is not signal.SIG_IGN and not isinstance(before, StopHandler):
            signal.signal(number, StopHandler(before))
