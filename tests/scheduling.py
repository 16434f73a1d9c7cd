"""Decides which tests run in the same process, and in which order groups of tests start.

Tests that share Spark sessions are one group: each process that uses Spark starts its own Java, which costs half a minute of CPU time. The
other groups are files, or functions of long files.
"""

from __future__ import annotations

import re
from typing import Final

from xdist.scheduler import LoadScopeScheduling

_SPARK_GROUPS: Final = {
    r"tests/spark/(streams|source|files)/": "Spark in files, streams and the data source",
    r"tests/spark/": "Spark in other tests",
    r"tests/cli/\w+_on_spark\.py": "Spark in commands",
    r"tests/docs/\w+\.py::test_(a_page_of_spark|the_examples_of_the_spark)_": "Spark in documents",
}
"""The groups of tests that share sessions, by the start of the test id; the first match counts."""
_OWN_SESSIONS: Final = "tests/spark/test_environments.py"
"""Each test of this file starts its own sessions, so each is a group."""
_SPLIT_BY_FUNCTION: Final = r"tests/(docs|cli|system)/[\w/]+\.py::\w+"
"""Files whose functions are groups of their own, because the whole file would take too long in one process."""
_LONGEST_FIRST: Final = (
    _OWN_SESSIONS,
    "tests/spark",
    "tests/docs/test_documents.py",
    "tests/docs/test_docstrings.py",
    "tests/system",
    "tests/cli",
    "tests/protocol",
)
"""The starts of the ids of long tests; the first match counts."""


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Runs the tests of a group in one process. The groups start in the order of their first tests."""

    def _split_scope(self, nodeid: str) -> str:
        """Returns the group of a test; xdist calls groups scopes."""
        if nodeid.startswith(_OWN_SESSIONS):
            return nodeid
        for start, group in _SPARK_GROUPS.items():
            if re.match(start, nodeid):
                return group
        function = re.match(_SPLIT_BY_FUNCTION, nodeid)
        return nodeid.partition("::")[0] if function is None else function[0]


def rank(nodeid: str) -> int:
    """Returns the place of a test in the order of all: the longest ones come first, so that none of them runs alone at the end."""
    return next((place for place, start in enumerate(_LONGEST_FIRST) if nodeid.startswith(start)), len(_LONGEST_FIRST))
