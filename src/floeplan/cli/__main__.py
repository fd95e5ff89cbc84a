"""The `floeplan` program; also `python -m floeplan.cli`."""

from __future__ import annotations

import sys

from floeplan.cli.interrupts import install


def run() -> None:
    """Run the program: signals are handled before anything is imported that takes time."""
    install()
    try:
        from floeplan.cli import main

        main.run()
    except KeyboardInterrupt:
        from floeplan.cli import main  # perhaps its import was interrupted

        sys.exit(main.report(main.interrupted(), sys.argv[1:]))


if __name__ == "__main__":
    run()
