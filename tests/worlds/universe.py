"""The names, ids, addresses and times of the worlds:

few, so that they match, and similar, so that they almost match.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from tests.oracle.find import BROKER_CONFIGURATION

NOW = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
TICK = timedelta(microseconds=1)

LIFETIMES = (NOW, NOW + TICK, NOW - TICK, NOW + timedelta(days=1), NOW - timedelta(days=1), NOW + timedelta(days=30000))

_LONG = "http://adventure-works.example/services/named-by-someone-who-likes-long-names"

NAMES = (
    "Orders",
    "orders",
    "ORDERS",
    "Orders ",
    "Orders\x00",
    "Order",
    "\u00d3rdenes",  # one code point for the first letter
    "O\u0301rdenes",  # two code points for the same letter
    "注文/サービス/🚚",
    _LONG[:64],
    _LONG[:65],
    _LONG + "/A",
    _LONG + "/B",
    "",
)
"""Service names that differ only in case, white space, length, Unicode form, or beyond the 64th byte."""

TRANSPORT_NAMES = (
    "TCP://other.example:4022/Orders",
    "tcp://OTHER.example:04022/orders",
    "other.example:5022",
    "TCP://[2001:DB8::0:7]:4022/Orders",
    "TCP://own.example:4022/Orders",
    "OWN.example:4022",
    "tcp://other.example/Orders",  # R23: without a port
    "other.example:0/Orders",
    "other.example:65536/Orders",
    "other.example:4022Orders",
    "http://other.example:4022/Orders",
    "LOCAL",
    "4022",
)
"""Service names that begin with an address, or nearly (R23)."""

SERVICE_NAMES = NAMES + TRANSPORT_NAMES + (BROKER_CONFIGURATION, BROKER_CONFIGURATION.lower())

BROKER_IDS = (
    UUID("5fb8d92b-ed69-4c80-afbb-2aa6a7d3cb2d"),
    UUID("5fb8d92b-ed69-4c80-afbb-2aa6a7d3cb2e"),
    UUID("6fb8d92b-ed69-4c80-afbb-2aa6a7d3cb2d"),
    UUID(int=0),
    UUID(int=2**128 - 1),
)

DATABASE_NAMES = ("Sales", "sales2", "Stores", "Äußeres", "Ops")

ADDRESSES = (
    "LOCAL",
    "TCP://other.example:4022",
    "TRANSPORT",
    "TCP://own.example:4022",
    "LOCAL",
    "tcp://OTHER.example",
    "tcp://other.example:4022/",
    "TCP://other.example:04022",
    "TCP://other.example:4023",
    "TCP://third.example:4022",
    "tcp://Own.example/",
    "local",
    "transport",
    "Tcp://[::1]:4022",
    "TCP://[2001:db8:0:0:0:0:0:7]/",
    "TCP://10.0.0.1:1",
    "TCP://own:4022",
)

MIRRORS = ("TCP://mirror.example:4022", "tcp://MIRROR.example:5022/", "TCP://own.example:4022", "tcp://other.example")

OWN_ADDRESSES = ("TCP://own.example:4022", "tcp://OWN.example/", "TCP://[0:0::1]:4022", "TCP://third.example")
