"""Batches of fragments on the wire: the schema, which both sides know, and what of it is the hop's (N1, N6)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ssbroker.protocol.envelope import ENVELOPE

HOP: Final = (
    pa.field("hops_remaining", pa.int8(), nullable=False),
    pa.field("time_to_live", pa.int32(), nullable=False),
    pa.field("time_consumed", pa.int32(), nullable=False),
    pa.field("key_exchange", pa.binary()),
)
"""What goes beside a row of the envelope: forwarders change the first three; `key_exchange` brings the session key of a direction."""

WIRE: Final = pa.schema([*ENVELOPE, *HOP])
"""A row on the wire."""
