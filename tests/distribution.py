"""Distributes the tests to processes: tests that share a Spark session run in one process, because each further Java costs half a minute of CPU time."""

from __future__ import annotations

import re
from typing import Final

from xdist.scheduler import LoadScopeScheduling

_SPARK: Final = (
    (r"tests/spark/test_environments\.py::.*", r"\g<0>"),  # starts its own
    (r"tests/spark/(streams|source|files)/.*", "Spark in files and streams"),
    (r"tests/spark/.*", "Spark"),
    (r"tests/cli/\w+_on_spark\.py::.*", "Spark in commands"),
    (r"tests/docs/\w+\.py::(test_a_page_of_spark_|test_the_examples_of_the_spark_).*", "Spark in documents"),
)
_LONG: Final = r"tests/(docs|cli|system)/[\w/]+\.py::\w+"
"""Tests of which a file would take too long for one process."""
LONGEST_FIRST: Final = (
    "tests/spark/test_environments.py",
    "tests/spark",
    "tests/docs/test_documents.py",
    "tests/docs/test_docstrings.py",
    "tests/system",
    "tests/cli",
    "tests/protocol",
)


class SharedSparkScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Gives each process the tests of one file after the other, or those of one function if they are long."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """Returns the name of the group of tests that run in one process."""
    for pattern, name in _SPARK:
        if found := re.fullmatch(pattern, nodeid):
            return found.expand(name)
    long = re.match(_LONG, nodeid)
    return nodeid.partition("::")[0] if long is None else long[0]


def rank(nodeid: str) -> int:
    """Returns the place of a test in the order of all: the longest ones come first, so that none of them runs alone at the end."""
    return next((place for place, name in enumerate(LONGEST_FIRST) if nodeid.startswith(name)), len(LONGEST_FIRST))
