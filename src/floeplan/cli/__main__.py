"""`python -m floeplan.cli` is the `floeplan` program."""

from floeplan.cli.main import run

run()
