"""Names of columns: as Spark takes them, as it tells them apart, and those that are taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ssbroker.exceptions import SchemaError
from ssbroker.schemas import DECISIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PACKED: Final = "ssbroker decision"
"""The column of decisions in one piece, which is taken apart and dropped."""
TOLD: Final = ("ssbroker situation", "ssbroker text")
"""The columns that tell a worker of others, dropped like it."""


def quoted(name: str) -> str:
    """The name as Spark's expressions take it, whatever is in it.

    Examples:
        >>> quoted("a`b.c")
        '`a``b.c`'
    """
    return "`" + name.replace("`", "``") + "`"


def check_once(wanted: Sequence[str], names: Sequence[str]) -> None:
    """Whatever is read is there once.

    Args:
        wanted: What is read.
        names: The columns that there are.

    Raises:
        SchemaError: A column occurs twice.
    """
    for name in wanted:
        if names.count(name) > 1:
            raise SchemaError(f"{name}: expected one column of this name, there are {names.count(name)}", column=name)


def check_told_apart(read: Sequence[str], given: DataFrame) -> None:
    """No other column has the name of one that is read but for upper and lower case, where that makes no difference to Spark.

    Args:
        read: What is read, by its name.
        given: Has the columns, and knows whether upper and lower case differ.

    Raises:
        SchemaError: There is such a column.
    """
    if tells_case(given):
        return
    for name in read:
        other = next((each for each in given.columns if each != name and each.lower() == name), None)
        if other is not None:
            raise SchemaError(
                f"{name}: there is {other!r}, too, which is the same name to Spark; rename it or drop it",
                column=name,
                expected="one column of this name",
                actual=other,
            )


def tells_case(given: DataFrame) -> bool:
    """Whether upper and lower case differ in names of columns."""
    return str(given.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"


def check_free(given: DataFrame, names: Sequence[str]) -> None:
    """The names of the decision's columns are not taken, nor those of columns that are dropped in the end.

    Args:
        given: Knows whether upper and lower case differ.
        names: The columns beside which the decision's will stand.

    Raises:
        SchemaError: A column has the name of one that routing adds.
    """
    _check_free(names, (*DECISIONS.names, PACKED, *TOLD), exact=tells_case(given))


def check_free_names(names: Sequence[str], *, exact: bool) -> None:
    """The names of the decision's columns are not among these.

    Args:
        names: The columns beside which the decision's will stand.
        exact: Whether upper and lower case differ.

    Raises:
        SchemaError: A column has the name of one that routing adds.
    """
    _check_free(names, DECISIONS.names, exact=exact)


def _check_free(names: Sequence[str], added: Sequence[str], *, exact: bool) -> None:
    for name in names:
        if (name if exact else name.lower()) in added:
            raise SchemaError(
                f"{name}: there is a column of the name of one that routing adds; rename it or drop it",
                column=name,
                expected="no column of this name",
            )
