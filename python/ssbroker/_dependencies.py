"""The oldest versions that will do of what is often there before ssbroker, as on a Spark cluster, where no `pip` compares them."""

from __future__ import annotations

import re
from typing import Final

PYARROW: Final = "25"
"""Up to 24, the process ends where a cast to views of short values is handed over; up to 23, cells of CSV come out as others."""
PYSPARK: Final = "4.1"
PYSPARK_OF_THE_FORMAT: Final = "4.2"
"""The first that asks a stream how much it may read."""


def is_older(found: str, least: str) -> bool:
    """Whether a version is older than the least that will do, which may have fewer parts.

    Examples:
        >>> is_older("4.0.1", "4.1"), is_older("4.1.0.dev2", "4.1"), is_older("4.10.0", "4.2")
        (True, False, False)
    """
    wanted = _numbers(least)
    return _numbers(found)[: len(wanted)] < wanted


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
