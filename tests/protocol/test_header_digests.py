"""P21: the digest of an unsecured fragment's header, computed natively and from the header's bytes."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker import _core
from ssbroker.exceptions import SchemaError
from ssbroker.protocol.envelope import ENVELOPE, EnvelopeRow, Protection, rows_to_table, table_to_rows

GUIDS = st.binary(min_size=16, max_size=16)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(0, 2**63 - 1)
SMALL = st.integers(0, 2**31 - 1)
ROWS = st.builds(
    EnvelopeRow,
    conversation_id=GUIDS,
    is_initiator=st.booleans(),
    sequence=NUMBERS,
    fragment=SMALL,
    count=SMALL,
    body=st.binary(max_size=100),
    message_signature=st.none() | GUIDS,
    fragment_signature=st.none() | GUIDS,
    is_sequenced=st.booleans(),
    from_service=NAMES,
    from_broker=GUIDS,
    to_service=NAMES,
    to_broker=st.none() | GUIDS,
    contract=NAMES,
    message_type=st.none() | NAMES,
    message_id=st.none() | GUIDS,
    priority=st.integers(-128, 127),
    is_end=st.booleans(),
    is_error=st.booleans(),
    lifetime=st.none() | st.integers(0, 253_402_300_799_999_999),
    security=st.sampled_from([int(each) for each in Protection]),
    acked=st.none() | NUMBERS,
    acked_ahead=st.none() | st.binary(max_size=50),
    header_signature=st.just(bytes(16)),
)


def digest(row: EnvelopeRow) -> bytes:
    covered = row.signature_input(row.header)
    return hashlib.md5(covered if row.is_sequenced else covered + row.body, usedforsecurity=False).digest()


@pytest.mark.rule("P21")
@given(rows=st.lists(ROWS, max_size=30), data=st.data())
def test_the_native_digest_equals_that_of_the_header_bytes(rows: list[EnvelopeRow], data: st.DataObject) -> None:
    """However the batch is sliced."""
    whole = rows_to_table(rows)
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    middle = data.draw(st.integers(start, end))
    part = pa.concat_tables([whole.slice(start, middle - start), whole.slice(middle, end - middle)])
    assert _core.header_digests(part).to_pylist() == [digest(row) for row in rows[start:end]]


@pytest.mark.rule("P21")
@given(row=ROWS)
def test_a_row_compares_its_signature_with_the_digest(row: EnvelopeRow) -> None:
    assert [each.has_valid_digest for each in table_to_rows(rows_to_table([row]))] == [False]
    row.header_signature = digest(row)
    assert [each.has_valid_digest for each in table_to_rows(rows_to_table([row]))] == [True]


@pytest.mark.rule("P21")
def test_bytes_under_nulls_do_not_affect_the_digest() -> None:
    """The sender of a batch controls those bytes."""
    row = EnvelopeRow(
        bytes(16),
        True,
        0,
        0,
        1,
        b"x",
        bytes(16),
        None,
        True,
        "a",
        bytes(16),
        "b",
        None,
        "c",
        "d",
        None,
        5,
        False,
        False,
        None,
        0,
        None,
        None,
        bytes(16),
    )
    table = rows_to_table([row])
    for name in ("to_broker_instance", "message_id", "fragment_signature"):
        at = table.schema.get_field_index(name)
        valid = pa.array([False]).buffers()[1]
        full = pa.Array.from_buffers(pa.binary(16), 1, [valid, pa.py_buffer(b"\xff" * 16)])
        table = table.set_column(at, table.schema.field(at), full)
    assert _core.header_digests(table).to_pylist() == [digest(row)]


@pytest.mark.parametrize("name", [each for each in ENVELOPE.names if each != "header_signature"])
def test_a_missing_or_mistyped_column_is_named(name: str) -> None:
    table = rows_to_table([])
    at = table.schema.get_field_index(name)
    for other in (table.remove_column(at), table.set_column(at, name, pa.array([], pa.float64()))):
        with pytest.raises(SchemaError, match=name):
            _core.header_digests(other)
