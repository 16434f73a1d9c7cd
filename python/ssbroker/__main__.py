"""Entry point of the command `ssbroker` and of `python -m ssbroker`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_LIBRARIES = ("rich", "typer")


def main() -> int:
    """Runs the command line; if its libraries are missing, prints how to install them."""
    for name in _LIBRARIES:
        if find_spec(name) is None:
            needs = "ssbroker: the command line needs rich and typer: pip install 'ssbroker[cli]'"
            print(needs, file=sys.stderr)  # noqa: T201 - the console of rich is missing
            return 2
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version  # noqa: PLC0415 - the fastest way to the version

        print("ssbroker", version("ssbroker"))  # noqa: T201 - the command line takes longer to import
        return 0
    from ssbroker.cli import main as run  # noqa: PLC0415 - it imports the libraries

    return run()


if __name__ == "__main__":
    sys.exit(main())
