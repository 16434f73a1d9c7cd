"""Spark expressions that parse GUIDs, and addresses at the start of service names, in text columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ssbroker._well_known import PORT_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column


_GUID_CHARACTERS: Final = 36
_GUID_DIGITS: Final = 32
_DASHES: Final = (9, 14, 19, 24)


def parsed_guid(text: Column) -> Column:
    """Returns the 16 bytes of a GUID of 36 characters, with or without braces; null if the text is not a GUID."""
    for step in PARSING_STEPS:
        text = step(text)
    return text


def _without_braces(text: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    has_braces = (sf.octet_length(text) == _GUID_CHARACTERS + 2) & text.startswith("{") & text.endswith("}")
    return sf.when(has_braces, sf.substring(text, 2, _GUID_CHARACTERS)).otherwise(text)


def _without_dashes(text: Column) -> Column:
    """Returns the text without dashes; null unless it has 36 bytes and dashes in the positions of a GUID."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    has_dashes = sf.octet_length(text) == _GUID_CHARACTERS
    for position in _DASHES:
        # Works on bytes, because substrings of text are found by characters, which takes longer.
        has_dashes &= sf.substring(text.cast("binary"), position, 1) == sf.lit(b"-")
    return sf.when(has_dashes, sf.replace(text, sf.lit("-"), sf.lit("")))


def _bytes_of_digits(digits: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.when(sf.octet_length(digits) == _GUID_DIGITS, sf.unhex(digits))


PARSING_STEPS: Final = (_without_braces, _without_dashes, _bytes_of_digits)
"""The steps of `parsed_guid`. Each step uses its argument several times; the argument is computed only once if it is a column."""

_HOST: Final = r"([0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]+)*|\[[0-9A-Fa-f:.]+\])"
_ADDRESS: Final = rf"(?s)\A(?:[Tt][Cc][Pp]://)?{_HOST}:0*([1-9][0-9]{{0,4}})(?:/.*)?\z"
_GROUPS: Final = 8
_OCTET: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4_TAIL: Final = rf"\A(.*:){_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}\z"
_IPV6: Final = r"\A(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}|(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?)\z"
_LEADING_ZEROS: Final = r"(?<![0-9a-f])0+(?=[0-9a-f])"
_LONGEST_ZEROS: Final = r"(?:\A|:)(0(?::0)++)(?::|\z)(?!.*(?<![0-9a-f])\1(?::0)+)"
"""The first of the longest runs of several zero groups, with the colons around it."""
_MAPPED: Final = r"\A(?:0:){5}ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})\z"


def address_in_name(name: Column, *, only_if: Column) -> Column:
    """Returns the normal form of the address at the start of a name, `[TCP://]host:port[/...]`; null if there is none, or if `only_if` is false.

    Spark generates no code for `zip_with`, so the method that it generates for a stage ends there. One method for this
    and the rest of a join with the decision table would be too long for the JVM to compile.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    def address(name: Column) -> Column:
        port = sf.regexp_extract(name, _ADDRESS, 2).cast("int")
        host = _computed_once(sf.lower(sf.regexp_extract(name, _ADDRESS, 1)), _normal_host)
        return sf.when(port <= PORT_MAX, sf.concat(sf.lit("TCP://"), host, sf.lit(":"), port.cast("string")))

    found = sf.zip_with(sf.array(name), sf.array(), lambda name, _: address(name))
    return sf.when(only_if & name.rlike(_ADDRESS), sf.get(found, sf.lit(0)))


def _computed_once(value: Column, result: Callable[[Column], Column]) -> Column:
    """Returns the result of a function for a value that is computed only once."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.get(sf.transform(sf.array(value), result), sf.lit(0))


def _normal_host(host: Column) -> Column:
    """Returns the normal form of a host in lower case; null for an invalid IPv6 address."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    inner = sf.substr(host, sf.lit(2), sf.length(host) - 2)
    bracketed = sf.concat(sf.lit("["), _computed_once(inner, _normal_ipv6), sf.lit("]"))
    return sf.when(host.startswith("["), bracketed).otherwise(host)


def _normal_ipv6(text: Column) -> Column:
    """Returns the normal form of an IPv6 address; null if it is invalid."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    def octet(number: int) -> Column:
        return sf.regexp_extract(text, _IPV4_TAIL, number + 1).cast("int")

    def with_groups(text: Column) -> Column:
        groups = sf.regexp_count(text, sf.lit("[0-9a-f]+"))
        missing = sf.concat(sf.lit(":"), sf.call_function("repeat", sf.lit("0:"), _GROUPS - groups))
        is_ipv6 = text.rlike(_IPV6) & (text.contains("::") == (groups < _GROUPS))
        full = sf.btrim(sf.replace(text, sf.lit("::"), missing), sf.lit(":"))
        return sf.when(is_ipv6, _computed_once(sf.regexp_replace(full, _LEADING_ZEROS, ""), _shortened))

    in_hexadecimal = sf.format_string(
        "%s%x:%x", sf.regexp_extract(text, _IPV4_TAIL, 1), octet(1) * 256 + octet(2), octet(3) * 256 + octet(4)
    )
    return _computed_once(sf.when(text.rlike(_IPV4_TAIL), in_hexadecimal).otherwise(text), with_groups)


def _shortened(full: Column) -> Column:
    """Returns the normal form of an IPv6 address of eight groups without leading zeros."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    def two_octets(group: int) -> Column:
        value = sf.conv(sf.regexp_extract(full, _MAPPED, group), 16, 10).cast("int")
        return sf.concat_ws(".", sf.shiftright(value, 8).cast("string"), value.bitwiseAND(0xFF).cast("string"))

    mapped = sf.concat(sf.lit("::ffff:"), two_octets(1), sf.lit("."), two_octets(2))
    return sf.when(full.rlike(_MAPPED), mapped).otherwise(sf.concat_ws("::", sf.split(full, _LONGEST_ZEROS, 2)))
