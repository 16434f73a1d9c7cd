"""The columns that a row gets for its first hop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from ssbroker import _core
from ssbroker.exceptions import SchemaError
from ssbroker.protocol.envelope import ENVELOPE, sender_runs
from ssbroker.protocol.wire.frames import HOPS_MAX, WIRE, to_wire_rows
from tests.protocol.wire.links import row

NOW = datetime(2026, 11, 25, tzinfo=UTC)
FOREVER = 2**31 - 1


def sent(*rows: dict[str, object]) -> pa.Table:
    """Returns rows of the envelope as they are sent."""
    return pa.Table.from_pylist([{name: each[name] for name in ENVELOPE.names} for each in rows], schema=ENVELOPE)


@pytest.mark.parametrize(
    ("lives", "left"),
    [
        (None, FOREVER),
        (timedelta(seconds=90, microseconds=999_999), 90),
        (timedelta(microseconds=999_999), 0),
        (timedelta(0), 0),
        (timedelta(seconds=-5), 0),
        (timedelta(seconds=FOREVER + 1), FOREVER),
    ],
)
def test_a_row_has_sixteen_hops_and_the_lifetime_of_its_conversation(lives: timedelta | None, left: int) -> None:
    rows = sent(row(), row(lifetime=None if lives is None else NOW + lives))
    found = to_wire_rows(
        rows, now=int(NOW.timestamp()) * 1_000_000, key_exchanges=pa.array([None, b"key"], pa.binary())
    )
    assert found.schema == WIRE
    assert found.select(ENVELOPE.names) == rows
    assert found["hops_remaining"].to_pylist() == [HOPS_MAX, HOPS_MAX]
    assert found["time_to_live"].to_pylist() == [FOREVER, left]
    assert found["time_consumed"].to_pylist() == [0, 0]
    assert found["key_exchange"].to_pylist() == [None, b"key"]


def test_sender_runs_follow_the_order_of_rows() -> None:
    one, other = row(), row(is_initiator=False, to_broker_instance=b"b" * 16)
    key, back = (one["conversation_id"], True, None), (one["conversation_id"], False, b"b" * 16)
    chunks = [sent(one, one), sent(one, other), sent(one)]
    assert sender_runs(pa.concat_tables(chunks)) == ([(key, 3), (back, 1), (key, 1)], True)
    assert sender_runs(sent(one, row(security=2))) == ([(key, 2)], False)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(SchemaError, match="lifetime"):
        _core.first_hop(ENVELOPE.empty_table().drop(["lifetime"]), 0)
    with pytest.raises(SchemaError, match="security"):
        _core.sender_runs(ENVELOPE.empty_table().drop(["security"]))
