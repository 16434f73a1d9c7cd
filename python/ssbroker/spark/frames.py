"""What is given in the place of a DataFrame, a session or a catalog, and is none."""

from __future__ import annotations

from ssbroker.catalog import Catalog
from ssbroker.exceptions import SchemaError


def check_frame(given: object, *, name: str) -> None:
    """Refuses what is no DataFrame of Spark, such as one of pandas.

    Args:
        given: What was given.
        name: What it is, for messages.

    Raises:
        SchemaError: It is something else.
    """
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is an extra

    if not isinstance(given, DataFrame):
        expected, actual = "a DataFrame of Spark", f"{type(given).__module__}.{type(given).__qualname__}"
        raise SchemaError(
            f"{name}: expected {expected}, such as spark.createDataFrame makes; got {actual.removeprefix('builtins.')}",
            expected=expected,
            actual=actual,
        )


def check_session(given: object) -> None:
    """Refuses what is no session of Spark, classic or of Connect.

    Args:
        given: What was given.

    Raises:
        SchemaError: It is something else.

    Examples:
        >>> check_session(None)
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: spark: expected a SparkSession, got NoneType
    """
    # The two have no class in common, and that of Connect is not installed everywhere.
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(given).__mro__]
    if ("pyspark", "SparkSession") not in kinds:
        expected, actual = "a SparkSession", type(given).__qualname__
        raise SchemaError(f"spark: expected {expected}, got {actual}", expected=expected, actual=actual)


def check_catalog(given: object) -> None:
    """Refuses what is no catalog, such as the path of one.

    Args:
        given: What was given.

    Raises:
        SchemaError: It is something else.

    Examples:
        >>> check_catalog("routes.sql")
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: catalog: expected an ssbroker.Catalog, as Catalog.load gives one; got str
    """
    if not isinstance(given, Catalog):
        expected, actual = "an ssbroker.Catalog", type(given).__qualname__
        raise SchemaError(
            f"catalog: expected {expected}, as Catalog.load gives one; got {actual}", expected=expected, actual=actual
        )
