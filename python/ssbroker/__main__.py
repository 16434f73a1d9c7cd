"""Entry point of the command `ssbroker` and of `python -m ssbroker`."""

from __future__ import annotations

import importlib
import sys

_LIBRARIES = ("rich", "typer")


def main() -> int:
    """Runs the command line; without its libraries, says how to install them."""
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            needs = "ssbroker: the command line needs rich and typer: pip install 'ssbroker[cli]'"
            print(needs, file=sys.stderr)  # noqa: T201 - the console of rich is missing
            return 2
    from ssbroker.cli import main as run  # noqa: PLC0415 - it imports the libraries

    return run()


if __name__ == "__main__":
    sys.exit(main())
