"""The address at the start of a service name, as an expression of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_HOST: Final = r"([0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]+)*|\[[0-9A-Fa-f:.]+\])"
_ADDRESS: Final = rf"(?s)\A(?:[Tt][Cc][Pp]://)?{_HOST}:0*([1-9][0-9]{{0,4}})(?:/.*)?\z"
_PORT_MAX: Final = 65_535
_GROUPS: Final = 8
_OCTET: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4_TAIL: Final = rf"\A(.*:){_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}\z"
_IPV6: Final = r"\A(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}|(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?)\z"
_LEADING_ZEROS: Final = r"(?<![0-9a-f])0+(?=[0-9a-f])"
_LONGEST_ZEROS: Final = r"(?:\A|:)(0(?::0)++)(?::|\z)(?!.*(?<![0-9a-f])\1(?::0)+)"
"""The first of the longest runs of several groups that are zero, with the colons around it."""
_MAPPED: Final = r"\A(?:0:){5}ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})\z"


def with_address_in_name(rows: DataFrame, name: Column, *, only_if: Column, alias: str) -> DataFrame:
    """Adds the normal form of the address at the start of a name, `[TCP://]host:port[/...]`; null if there is none, or if it is not wanted.

    Each step adds a column, so that Spark computes it once instead of wherever it is used. The names of these columns start with
    `alias`; the one called `alias` is the result.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    def step(number: int) -> Column:
        return sf.col(f"`{alias} {number}`")

    def octet(number: int) -> Column:
        return sf.regexp_extract(step(3), _IPV4_TAIL, number + 1).cast("int")

    def two_octets(group: int) -> Column:
        value = sf.conv(sf.regexp_extract(step(6), _MAPPED, group), 16, 10).cast("int")
        return sf.concat_ws(".", sf.shiftright(value, 8).cast("string"), value.bitwiseAND(0xFF).cast("string"))

    in_hexadecimal = sf.format_string(
        "%s%x:%x", sf.regexp_extract(step(3), _IPV4_TAIL, 1), octet(1) * 256 + octet(2), octet(3) * 256 + octet(4)
    )
    missing = sf.concat(sf.lit(":"), sf.call_function("repeat", sf.lit("0:"), _GROUPS - step(5)))
    is_ipv6 = step(4).rlike(_IPV6) & (step(4).contains("::") == (step(5) < _GROUPS))
    full = sf.btrim(sf.replace(step(4), sf.lit("::"), missing), sf.lit(":"))
    mapped = sf.concat(sf.lit("::ffff:"), two_octets(1), sf.lit("."), two_octets(2))
    normal = sf.when(step(6).rlike(_MAPPED), mapped).otherwise(sf.concat_ws("::", sf.split(step(6), _LONGEST_ZEROS, 2)))
    bracketed = sf.when(step(6).isNotNull(), sf.concat(sf.lit("["), normal, sf.lit("]")))
    host = sf.when(step(3).isNull(), step(1)).otherwise(bracketed)
    address = sf.concat(sf.lit("TCP://"), host, sf.lit(":"), step(2).cast("string"))
    steps = [
        sf.when(only_if & name.rlike(_ADDRESS), name),
        sf.lower(sf.regexp_extract(step(0), _ADDRESS, 1)),
        sf.regexp_extract(step(0), _ADDRESS, 2).cast("int"),
        sf.when(step(1).startswith("["), sf.substr(step(1), sf.lit(2), sf.length(step(1)) - 2)),
        sf.when(step(3).rlike(_IPV4_TAIL), in_hexadecimal).otherwise(step(3)),
        sf.regexp_count(step(4), sf.lit("[0-9a-f]+")),
        sf.when(is_ipv6, sf.regexp_replace(full, _LEADING_ZEROS, "")),
    ]
    for number, column in enumerate(steps):
        rows = rows.select("*", column.alias(f"{alias} {number}"))
    return rows.select("*", sf.when(step(2) <= _PORT_MAX, address).alias(alias))
