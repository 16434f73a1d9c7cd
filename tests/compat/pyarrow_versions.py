"""Marks tests that a version of pyarrow cannot run."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ssbroker._compat import is_older


def needs_pyarrow(minimum: str, why: str) -> pytest.MarkDecorator:
    """Skips a test if pyarrow is older; `why` is what it lacks."""
    return pytest.mark.skipif(
        is_older(pa.__version__, minimum), reason=f"needs pyarrow {minimum} or newer, {pa.__version__} {why}"
    )


COLUMN_STREAMS = needs_pyarrow("16", "has no streams of a single column")
