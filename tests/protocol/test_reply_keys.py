"""With full security each side has its own key, and a reply under any other key is rejected."""

from __future__ import annotations

import pytest

from ssbroker.protocol.storage import ExchangedKeys
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import CONVERSATION, KEY, SECOND, C, Pair, Row, is_error, pair
from tests.protocol.test_dialog_security import altered

ANSWER, FORGED = bytes(range(32, 64)), bytes(range(64, 96))
SHOP, BANK = b"fingerprint of the certificate".ljust(32, b"S"), b"fingerprint of the certificate".ljust(32, b"B")


def full(engine: EngineFactory, *, answer: bytes = ANSWER) -> Pair:
    """Returns a dialog whose target answers with its own key."""
    engines = pair(engine, dialog={"session_key": KEY})
    engines.b.session_keys[CONVERSATION] = ExchangedKeys(KEY, ANSWER, SHOP)
    engines.a.session_keys[CONVERSATION] = ExchangedKeys(answer, None, BANK)
    return engines


def talk(engines: Pair, now: int = 0) -> None:
    engines.a.send(engines.outgoing, b"question")
    engines.exchange(now)
    engines.b.send(engines.incoming, b"answer")
    engines.exchange(now + 20 * SECOND)


def test_each_side_encrypts_with_its_own_key_and_keeps_both(engine: EngineFactory) -> None:
    engines = full(engine)
    talk(engines)
    assert (engines.b.queue(engines.incoming), engines.a.queue(engines.outgoing)) == ([b"question"], [b"answer"])
    initiator, target = (
        side.storage.accounts[key].endpoint
        for side, key in ((engines.a, engines.outgoing), (engines.b, engines.incoming))
    )
    assert (initiator.session_key, initiator.far_session_key, initiator.far_certificate) == (KEY, ANSWER, BANK)
    assert (target.session_key, target.far_session_key, target.far_certificate) == (ANSWER, KEY, SHOP)
    assert engines.a.rejection_events == engines.b.rejection_events == []


def test_keys_outlive_restarts_of_both_sides(engine: EngineFactory) -> None:
    """The keys are durable with the rows that they decrypted."""
    engines = full(engine)
    talk(engines)
    for side in (engines.a, engines.b):
        side.session_keys.clear()
        engines.restart(side)
    talk(engines, 100 * SECOND)
    assert engines.b.queue(engines.incoming) == [b"question"] * 2
    assert engines.a.queue(engines.outgoing) == [b"answer"] * 2
    assert engines.a.rejection_events == engines.b.rejection_events == []


def test_the_first_answer_may_be_a_message_with_its_acknowledgement(engine: EngineFactory) -> None:
    """The key that arrives with a message also verifies the message."""
    engines = full(engine)
    engines.a.send(engines.outgoing, b"question")
    engines.b.receive_and_commit(engines.a.rows())
    engines.b.send(engines.incoming, b"answer " * 1000)
    engines.a.receive_and_commit(engines.b.rows())
    assert engines.a.queue(engines.outgoing) == [b"answer " * 1000]
    assert engines.a.waiting(engines.outgoing) == []


def first_answer(engines: Pair) -> Row:
    engines.a.send(engines.outgoing, b"question")
    engines.b.receive_and_commit(engines.a.rows())
    (row,) = engines.b.rows()
    return row


@pytest.mark.threat("T11", "T2")
def test_every_single_bit_flip_of_the_first_answer_is_refused(engine: EngineFactory) -> None:
    """The honest answer still binds the dialog afterwards."""
    engines = full(engine)
    row = first_answer(engines)
    for altered_row in altered(row):
        assert engines.a.receive_and_commit([altered_row]).is_empty
    assert engines.a.waiting(engines.outgoing) == [0]
    engines.a.receive_and_commit([row])
    assert engines.a.waiting(engines.outgoing) == []


@pytest.mark.threat("T14")
def test_an_answer_under_an_unauthenticated_key_is_rejected(engine: EngineFactory) -> None:
    """Neither that of a clone without the key, nor the honest one if it comes with a forged key."""
    engines = full(engine, answer=FORGED)
    row = first_answer(engines)
    assert engines.a.receive_and_commit([row]).is_empty
    assert engines.a.waiting(engines.outgoing) == [0]
    endpoint = engines.a.storage.accounts[engines.outgoing].endpoint
    assert (endpoint.far_session_key, endpoint.is_bound) == (None, False)
    engines.a.session_keys[CONVERSATION] = ExchangedKeys(ANSWER, None, BANK)
    engines.a.receive_and_commit([row])
    assert engines.a.waiting(engines.outgoing) == []


@pytest.mark.rule("P25")
@pytest.mark.threat("T14")
def test_after_the_first_answer_no_other_key_is_accepted(engine: EngineFactory) -> None:
    """Nor one with a certificate, nor after a restart."""
    engines = full(engine)
    talk(engines)
    other = full(engine)
    other.b.session_keys[CONVERSATION] = ExchangedKeys(KEY, FORGED, SHOP)
    forged = first_answer(other)
    engines.a.session_keys[CONVERSATION] = ExchangedKeys(FORGED, None, BANK)
    for restart in (False, True):
        if restart:
            engines.restart(engines.a)
        assert engines.a.receive_and_commit([forged], 50 * SECOND).is_empty
    endpoint = engines.a.storage.accounts[engines.outgoing].endpoint
    assert endpoint.far_session_key == ANSWER


@pytest.mark.threat("T2")
def test_reflected_rows_are_rejected(engine: EngineFactory) -> None:
    """Reflected, with and without reversing the direction."""
    engines = full(engine)
    engines.a.send(engines.outgoing, b"question")
    (row,) = engines.a.rows()
    for reflected in (row, {**row, "is_initiator": False}):
        assert engines.a.receive_and_commit([reflected]).is_empty
    assert engines.a.queue(engines.outgoing) == []


def test_a_rolled_back_answer_binds_the_dialog_when_it_arrives_again(engine: EngineFactory) -> None:
    engines = full(engine)
    row = first_answer(engines)
    engines.a.dialogs.undo(engines.a.receive([row]))
    engines.a.receive_and_commit([row])
    assert engines.a.waiting(engines.outgoing) == []
    assert engines.a.storage.accounts[engines.outgoing].endpoint.far_session_key == ANSWER


def test_a_secured_dialog_may_arrive_from_any_peer(engine: EngineFactory) -> None:
    """The dialog continues after the route through the network has changed."""
    engines = full(engine)
    talk(engines)
    assert engines.a.storage.accounts[engines.outgoing].endpoint.far_peer is None
    engines.a.send(engines.outgoing, b"by another way")
    engines.b.receive_and_commit(engines.a.rows(50 * SECOND), 50 * SECOND, peer=b"certificate of a forwarder")
    assert engines.b.queue(engines.incoming) == [b"question", b"by another way"]


@pytest.mark.rule("R8", "P25")
def test_a_second_copy_that_answers_with_its_own_key_gets_an_error(engine: EngineFactory) -> None:
    """-8495 as in an unsecured dialog, under the initiator's key; the first copy is not affected."""
    engines, copy = full(engine), full(engine)
    copy.b.storage.broker_instance = C
    copy.b.session_keys[CONVERSATION] = ExchangedKeys(KEY, FORGED, SHOP)
    engines.a.send(engines.outgoing, b"question")
    first = engines.a.rows()
    engines.b.receive_and_commit(first)
    copy.b.receive_and_commit(first)
    engines.a.receive_and_commit(engines.b.rows())
    engines.a.session_keys[CONVERSATION] = ExchangedKeys(FORGED, None, BANK)
    copy.b.send(engines.incoming, b"from the copy")
    engines.a.receive_and_commit(copy.b.rows(SECOND), SECOND)
    errors = [row for row in engines.a.rows(SECOND) if is_error(row)]
    copy.b.receive_and_commit(errors, SECOND)
    assert b"<Code>-8495</Code>" in (copy.b.storage.accounts[engines.incoming].error or b"")
    engines.b.send(engines.incoming, b"answer")
    engines.a.receive_and_commit(engines.b.rows(2 * SECOND), 2 * SECOND)
    assert engines.a.queue(engines.outgoing) == [b"answer"]
