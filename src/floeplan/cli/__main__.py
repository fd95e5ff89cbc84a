"""`python -m floeplan.cli` is the `floeplan` program."""

from __future__ import annotations

from floeplan.cli.main import run

run()
