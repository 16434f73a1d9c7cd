"""Minimum versions of libraries that may be installed independently of ssbroker, as on a Spark cluster."""

from __future__ import annotations

import re
from typing import Final

PYARROW_MINIMUM: Final = "25"
"""Up to 24, exporting a cast to a view type of short values crashes the process; up to 23, some CSV cells are converted wrongly."""
PYSPARK_MINIMUM: Final = "4.1"
PYSPARK_FOR_DATA_SOURCE: Final = "4.2"
"""The first version in which a streaming source can limit how much is read."""


def is_older(version: str, minimum: str) -> bool:
    """Whether a version is older than a minimum, which may have fewer components.

    Examples:
        >>> is_older("4.0.1", "4.1"), is_older("4.1.0.dev2", "4.1"), is_older("4.10.0", "4.2")
        (True, False, False)
    """
    minimum_numbers = _numbers(minimum)
    return _numbers(version)[: len(minimum_numbers)] < minimum_numbers


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
