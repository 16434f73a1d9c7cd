"""P21, P22, P25: without the key, nobody can alter, move or answer the rows of a dialog."""

from __future__ import annotations

from typing import Any

import pytest

from ssbroker.exceptions import OptionError
from ssbroker.protocol.settings import ProtocolSettings
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import KEY, SECOND, A, B, C, Pair, Row, established_pair, is_error, numbers, pair
from tests.protocol.test_receiver import with_new_header_digest

SECURED = {"session_key": KEY}


def flips(value: Any) -> list[Any]:
    """Returns the value with each of its bits flipped, and without it."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value ^ 1 << bit for bit in range(7)]
    if isinstance(value, str):
        return [
            value[:at] + chr(ord(value[at]) ^ 1 << bit) + value[at + 1 :]
            for at in range(len(value))
            for bit in range(6)
        ]
    if isinstance(value, bytes):
        number = int.from_bytes(value)
        return [(number ^ 1 << bit).to_bytes(len(value)) for bit in range(8 * len(value))]
    return []


def altered(row: Row) -> list[Row]:
    """Yields the row with every single bit flipped, one at a time, and with a value in place of each null."""
    there = [{**row, name: other} for name, value in row.items() for other in flips(value)]
    fillers: dict[str, Any] = {"acked_sequence_number": 0, "acked_ahead": b"", "lifetime": 0}
    filled = [{**row, name: filler} for name, filler in fillers.items() if row[name] is None]
    return there + filled


@pytest.mark.rule("P22", "P21", "P23")
@pytest.mark.parametrize("secured", [True, False])
def test_every_single_bit_flip_of_header_or_part_is_refused(engine: EngineFactory, *, secured: bool) -> None:
    """Of fragments and acknowledgements, of secured dialogs and of unsecured ones (there it detects accidents)."""
    both = established_pair(engine, dialog=SECURED if secured else None)
    both.a.send(both.outgoing, b"pay 100 to Ann")
    (row,) = both.a.rows(20 * SECOND)
    for altered_row in altered(row):
        effects = both.b.receive_and_commit([altered_row], 20 * SECOND)
        assert effects.is_empty, {name: value for name, value in altered_row.items() if value != row[name]}
    assert both.b.queue(both.incoming) == [b"first"]
    both.b.rows(25 * SECOND)
    both.b.receive_and_commit([row], 25 * SECOND)
    (acknowledgement,) = both.b.rows(27 * SECOND)
    for altered_row in altered(acknowledgement):
        assert both.a.receive_and_commit([altered_row], 27 * SECOND).is_empty
    assert both.a.waiting(both.outgoing) == [1]
    both.a.receive_and_commit([acknowledgement], 28 * SECOND)
    assert both.a.waiting(both.outgoing) == []


@pytest.mark.rule("P22")
def test_bodies_cannot_be_read_in_transit(engine: EngineFactory) -> None:
    """Nor a digest of it, which would confirm a guess."""
    both = established_pair(engine, dialog=SECURED, max_fragment_bytes=8)
    body = b"the secret of the house"
    both.a.send(both.outgoing, body)
    rows = both.a.rows(20 * SECOND)
    plain = established_pair(engine, max_fragment_bytes=8)
    plain.a.send(plain.outgoing, body)
    for row, open_row in zip(rows, plain.a.rows(20 * SECOND), strict=True):
        assert open_row["message_body"] in body
        assert open_row["message_body"] not in row["message_body"]
        for name in ("message_signature", "fragment_signature"):
            assert row[name] != open_row[name]
    both.b.receive_and_commit(rows, 20 * SECOND)
    assert both.b.queue(both.incoming)[-1] == body


def test_a_resent_fragment_has_the_same_bytes(engine: EngineFactory) -> None:
    both = established_pair(engine, dialog=SECURED)
    both.a.send(both.outgoing, b"again and again")
    assert both.a.rows(20 * SECOND) == both.a.rows(30 * SECOND) == both.a.rows(45 * SECOND) != []


@pytest.mark.rule("P22")
@pytest.mark.threat("T2")
def test_fragments_are_rejected_in_any_other_position(engine: EngineFactory) -> None:
    """Another sequence number, fragment, direction or dialog, with the header and signature of the original or of the new place."""
    both = established_pair(engine, dialog=SECURED, max_fragment_bytes=8)
    other = both.begin(conversation=b"the other dialog", far_broker_instance=B, session_key=bytes(32))
    both.a.send(both.outgoing, b"one part", b"two part", b"three of three of")
    both.a.send(other, b"one part")
    rows = both.a.rows(20 * SECOND)
    mine = [row for row in rows if row["conversation_id"] == both.outgoing[0]]
    content = ("message_body", "message_signature", "fragment_signature")
    for where in rows:
        for whence in rows:
            if where is not whence:
                both.b.receive_and_commit([{**where, **{name: whence[name] for name in content}}], 20 * SECOND)
    for row in mine:
        both.a.receive_and_commit([{**row, "is_initiator": False}, row], 20 * SECOND)
    assert both.b.queue(both.incoming) == [b"first"]
    assert both.b.storage.accounts[both.incoming].stored == {}
    both.b.receive_and_commit(rows, 21 * SECOND)
    assert both.b.queue(both.incoming)[1:] == [b"one part", b"two part", b"three of three of"]


@pytest.mark.rule("P22")
@pytest.mark.threat("T15")
def test_a_secured_dialog_rejects_unsecured_rows(engine: EngineFactory) -> None:
    """MD5 signatures are rejected too, unless `integrity` is compat."""
    both = established_pair(engine, dialog=SECURED)
    plain = established_pair(engine)
    compat = established_pair(engine, dialog=SECURED, integrity="compat")
    for each in (both, plain, compat):
        each.a.send(each.outgoing, b"from a stranger")
    for rows in (plain.a.rows(20 * SECOND), compat.a.rows(20 * SECOND)):
        assert both.b.receive_and_commit(rows, 20 * SECOND).is_empty
    assert len(both.b.rejection_events) == 2
    assert both.b.queue(both.incoming) == [b"first"]


@pytest.mark.rule("P22", "P21")
def test_compat_accepts_md5_signatures_with_the_key_only(engine: EngineFactory) -> None:
    """Bodies are not encrypted; rows forged without the key are rejected, fragments too."""
    both = established_pair(engine, dialog=SECURED, integrity="compat", max_fragment_bytes=8)
    both.a.send(both.outgoing, b"short", b"long enough for two")
    rows = both.a.rows(20 * SECOND)
    assert rows[0]["message_body"] == b"short"
    stranger = established_pair(engine, dialog={"session_key": bytes(32)}, integrity="compat", max_fragment_bytes=8)
    stranger.a.send(stranger.outgoing, b"forge", b"forged as well, yes")
    both.b.receive_and_commit(stranger.a.rows(20 * SECOND), 20 * SECOND)
    moved = [
        with_new_header_digest({**row, "message_sequence_number": row["message_sequence_number"] + 1}) for row in rows
    ]
    both.b.receive_and_commit(moved, 20 * SECOND)
    both.b.receive_and_commit([with_new_header_digest({**row, "message_signature": None}) for row in rows], 20 * SECOND)
    assert both.b.queue(both.incoming) == [b"first"]
    both.b.receive_and_commit(rows, 21 * SECOND)
    assert both.b.queue(both.incoming)[1:] == [b"short", b"long enough for two"]


@pytest.mark.rule("P22")
def test_a_dialog_with_an_unknown_key_is_rejected(engine: EngineFactory) -> None:
    both = pair(engine, dialog=SECURED)
    both.b.session_keys.clear()
    both.a.send(both.outgoing, b"who can read this")
    both.b.receive_and_commit(both.a.rows())
    assert both.b.storage.accounts == {}
    assert both.b.rows(5 * SECOND) == []
    assert len(both.b.rejection_events) == 1


@pytest.mark.rule("P22", "P11")
def test_broker_errors_are_authenticated(engine: EngineFactory) -> None:
    """A stranger cannot end a secured dialog, and nobody else can read the broker's message."""
    from ssbroker.protocol.storage import Refusal  # noqa: PLC0415 - for this one only

    refuses = lambda kind, _: Refusal(-8428, "there is no such type") if kind == "Odd" else None  # noqa: E731 - one line
    both = established_pair(engine, dialog=SECURED, refuses=refuses)
    plain = established_pair(engine, refuses=refuses)
    for each in (both, plain):
        each.a.send(each.outgoing, b"odd", message_type="Odd")
        each.b.receive_and_commit(each.a.rows(20 * SECOND), 20 * SECOND)
    (forged,) = [row for row in plain.b.rows(20 * SECOND) if is_error(row)]
    (genuine,) = [row for row in both.b.rows(20 * SECOND) if is_error(row)]
    assert b"8428" in forged["message_body"]
    assert b"8428" not in genuine["message_body"]
    for altered_row in (forged, *altered(genuine)):
        both.a.receive_and_commit([altered_row], 20 * SECOND)
    assert both.a.storage.accounts[both.outgoing].error is None
    both.a.receive_and_commit([genuine], 20 * SECOND)
    assert b"<Code>-8428</Code>" in (both.a.storage.accounts[both.outgoing].error or b"")


@pytest.mark.rule("P25")
@pytest.mark.threat("T14")
def test_only_the_first_responder_can_answer(engine: EngineFactory) -> None:
    """A broker id is an address, not a credential: the certificate decides, at both ends and after a restart."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"one")
    both.b.send(both.incoming, b"two")
    there, back = both.a.rows(20 * SECOND), both.b.rows(20 * SECOND)
    for restart in (False, True):
        if restart:
            both.restart(both.a)
            both.restart(both.b)
        both.b.receive_and_commit(there, 20 * SECOND, peer=b"certificate of a clone")
        both.a.receive_and_commit(back, 20 * SECOND, peer=b"certificate of a clone")
    assert (both.b.queue(both.incoming), both.a.queue(both.outgoing)) == ([b"first"], [b"first back"])
    both.b.receive_and_commit(there, 20 * SECOND)
    both.a.receive_and_commit(back, 20 * SECOND)
    assert (both.b.queue(both.incoming)[1:], both.a.queue(both.outgoing)[1:]) == ([b"one"], [b"two"])


def answered_by_two(engine: EngineFactory) -> tuple[Pair, Pair]:
    """Creates a dialog whose first message has reached two copies of the service."""
    both, copy = pair(engine), pair(engine)
    copy.b.storage.broker_instance = C
    both.a.send(both.outgoing, b"one", b"two")
    first = both.a.rows()
    both.b.receive_and_commit(first)
    copy.b.receive_and_commit(first)
    return both, copy


@pytest.mark.rule("R8", "P25")
def test_a_second_copy_that_answers_gets_an_error(engine: EngineFactory) -> None:
    """-8495, so that its application does not wait forever."""
    both, copy = answered_by_two(engine)
    both.a.receive_and_commit(both.b.rows())
    copy.b.send((both.outgoing[0], False), b"from the copy")
    both.a.receive_and_commit(copy.b.rows(SECOND), SECOND)
    assert both.a.queue(both.outgoing) == []
    rows = both.a.rows(SECOND)
    errors = [row for row in rows if is_error(row)]
    assert {row["to_broker_instance"] for row in errors} == {C}
    assert {row["to_broker_instance"] for row in rows if row["is_sequenced"]} == {B}
    copy.b.receive_and_commit(errors, SECOND)
    assert b"<Code>-8495</Code>" in (copy.b.storage.accounts[both.incoming].error or b"")


@pytest.mark.rule("R8")
def test_rows_that_name_another_broker_id_are_rejected(engine: EngineFactory) -> None:
    """Nor rows to or from another service of the same conversation."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"one")
    (row,) = both.a.rows(20 * SECOND)
    for name, value in {
        "to_broker_instance": C,
        "from_broker_instance": C,
        "to_service_name": "Thief",
        "from_service_name": "Thief",
        "service_contract_name": "Theft",
    }.items():
        assert both.b.receive_and_commit([with_new_header_digest({**row, name: value})], 20 * SECOND).is_empty
    assert both.b.queue(both.incoming) == [b"first"]
    assert len(both.b.rejection_events) == 5


@pytest.mark.rule("P12", "P26")
def test_inconsistent_headers_are_rejected(engine: EngineFactory) -> None:
    """Combinations of fields that no header may have."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"one")
    (row,) = both.a.rows(20 * SECOND)
    for contradiction in (
        {"is_sequenced": False},
        {"is_end_of_dialog": True, "is_conversation_error": True},
        {"message_type_name": None},
        {"message_sequence_number": -1},
        {"message_sequence_number": 2**63 - 1},
        {"fragment_number": 1},
        {"fragment_count": 0},
        {"acked_sequence_number": 0},
        {"acked_ahead": b"x"},
        {"security": 2},
    ):
        altered_row = with_new_header_digest({**row, **contradiction})
        assert both.b.receive_and_commit([altered_row], 20 * SECOND).is_empty, contradiction
    assert len(both.b.rejection_events) == 10
    both.b.receive_and_commit([row], 20 * SECOND)
    assert both.b.queue(both.incoming) == [b"first", b"one"]


def test_a_session_key_is_not_printed(engine: EngineFactory) -> None:
    both = pair(engine, dialog=SECURED)
    shown = repr(both.a.storage.accounts) + repr(both.a.dialogs._cache.load([both.outgoing]))
    assert "Shop" in shown
    assert repr(KEY)[2:20] not in shown


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(OptionError, match='integrity: expected "strict" or "compat"'):
        ProtocolSettings(integrity="none")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="window_fragments: expected an integer from 1 to 1024"):
        ProtocolSettings(window_fragments=1025)


@pytest.mark.rule("P22")
def test_secured_dialogs_work_in_both_directions(engine: EngineFactory) -> None:
    """Each direction has its own keys; messages carry acknowledgements."""
    both = pair(engine, dialog=SECURED, max_fragment_bytes=16)
    for number in range(10):
        both.a.send(both.outgoing, b"question %d" % number * 5)
        both.exchange(number * 5 * SECOND, times=2)
        both.b.send(both.incoming, b"answer %d" % number * 5)
        both.exchange(number * 5 * SECOND + 2 * SECOND, times=2)
    both.exchange(100 * SECOND)
    assert both.b.queue(both.incoming) == [b"question %d" % number * 5 for number in range(10)]
    assert both.a.queue(both.outgoing) == [b"answer %d" % number * 5 for number in range(10)]
    assert both.b.rejection_events == both.a.rejection_events == []
    assert both.a.storage.accounts[both.outgoing].endpoint.broker_instance == A
    assert numbers(both.a.rows(200 * SECOND)) == []
