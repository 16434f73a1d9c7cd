"""Parses GUIDs in text columns, as expressions of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column


_GUID_CHARACTERS: Final = 36
_GUID_DIGITS: Final = 32
_DASHES: Final = (9, 14, 19, 24)


def parsed_guid(text: Column) -> Column:
    """Returns the 16 bytes of a GUID of 36 characters, with or without braces; null if it is not one."""
    for step in PARSING_STEPS:
        text = step(text)
    return text


def _without_braces(text: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    has_braces = (sf.octet_length(text) == _GUID_CHARACTERS + 2) & text.startswith("{") & text.endswith("}")
    return sf.when(has_braces, sf.substring(text, 2, _GUID_CHARACTERS)).otherwise(text)


def _without_dashes(text: Column) -> Column:
    """Returns the text without dashes; null if it does not have 36 bytes, with dashes where a GUID has them."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    has_dashes = sf.octet_length(text) == _GUID_CHARACTERS
    for position in _DASHES:
        # Parts of texts are found by characters, which takes longer.
        has_dashes &= sf.substring(text.cast("binary"), position, 1) == sf.lit(b"-")
    return sf.when(has_dashes, sf.replace(text, sf.lit("-"), sf.lit("")))


def _bytes_of_digits(digits: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.when(sf.octet_length(digits) == _GUID_DIGITS, sf.unhex(digits))


PARSING_STEPS: Final = (_without_braces, _without_dashes, _bytes_of_digits)
"""The steps of `parsed_guid`: each uses its argument several times, which is computed once if it is a column."""
