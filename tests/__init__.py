"""The tests. With an old pyarrow, what they call and it lacks is added in each of their processes."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

with suppress(metadata.PackageNotFoundError):  # `make rules` needs no pyarrow
    if int(metadata.version("pyarrow").partition(".")[0]) < 18:
        import tests.compat.older_pyarrow  # noqa: F401 - it adds them
