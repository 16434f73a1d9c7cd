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
    """A dialog whose target answers with its own key."""
    both = pair(engine, dialog={"session_key": KEY})
    both.b.session_keys[CONVERSATION] = ExchangedKeys(KEY, ANSWER, SHOP)
    both.a.session_keys[CONVERSATION] = ExchangedKeys(answer, None, BANK)
    return both


def talk(both: Pair, now: int = 0) -> None:
    both.a.send(both.outgoing, b"question")
    both.exchange(now)
    both.b.send(both.incoming, b"answer")
    both.exchange(now + 20 * SECOND)


def test_each_side_encrypts_with_its_own_key_and_keeps_both(engine: EngineFactory) -> None:
    both = full(engine)
    talk(both)
    assert (both.b.queue(both.incoming), both.a.queue(both.outgoing)) == ([b"question"], [b"answer"])
    initiator, target = (
        side.storage.accounts[key].endpoint for side, key in ((both.a, both.outgoing), (both.b, both.incoming))
    )
    assert (initiator.session_key, initiator.far_session_key, initiator.far_certificate) == (KEY, ANSWER, BANK)
    assert (target.session_key, target.far_session_key, target.far_certificate) == (ANSWER, KEY, SHOP)
    assert both.a.refused == both.b.refused == []


def test_keys_outlive_restarts_of_both_sides(engine: EngineFactory) -> None:
    """The keys are durable with the rows that they decrypted."""
    both = full(engine)
    talk(both)
    for side in (both.a, both.b):
        side.session_keys.clear()
        both.restart(side)
    talk(both, 100 * SECOND)
    assert both.b.queue(both.incoming) == [b"question"] * 2
    assert both.a.queue(both.outgoing) == [b"answer"] * 2
    assert both.a.refused == both.b.refused == []


def test_the_first_answer_may_be_a_message_with_its_acknowledgement(engine: EngineFactory) -> None:
    """The key that arrives with a message also verifies the message."""
    both = full(engine)
    both.a.send(both.outgoing, b"question")
    both.b.take(both.a.rows())
    both.b.send(both.incoming, b"answer " * 1000)
    both.a.take(both.b.rows())
    assert both.a.queue(both.outgoing) == [b"answer " * 1000]
    assert both.a.waiting(both.outgoing) == []


def first_answer(both: Pair) -> Row:
    both.a.send(both.outgoing, b"question")
    both.b.take(both.a.rows())
    (row,) = both.b.rows()
    return row


@pytest.mark.threat("T11", "T2")
def test_every_single_bit_flip_of_the_first_answer_is_refused(engine: EngineFactory) -> None:
    """The honest answer still binds the dialog afterwards."""
    both = full(engine)
    row = first_answer(both)
    for bad in altered(row):
        assert both.a.take([bad]).is_empty
    assert both.a.waiting(both.outgoing) == [0]
    both.a.take([row])
    assert both.a.waiting(both.outgoing) == []


@pytest.mark.threat("T14")
def test_an_answer_under_an_unauthenticated_key_is_rejected(engine: EngineFactory) -> None:
    """Neither that of a clone without the key, nor the honest one if it comes with a forged key."""
    both = full(engine, answer=FORGED)
    row = first_answer(both)
    assert both.a.take([row]).is_empty
    assert both.a.waiting(both.outgoing) == [0]
    endpoint = both.a.storage.accounts[both.outgoing].endpoint
    assert (endpoint.far_session_key, endpoint.is_bound) == (None, False)
    both.a.session_keys[CONVERSATION] = ExchangedKeys(ANSWER, None, BANK)
    both.a.take([row])
    assert both.a.waiting(both.outgoing) == []


@pytest.mark.rule("P25")
@pytest.mark.threat("T14")
def test_after_the_first_answer_no_other_key_is_accepted(engine: EngineFactory) -> None:
    """Nor one with a certificate, nor after a restart."""
    both = full(engine)
    talk(both)
    other = full(engine)
    other.b.session_keys[CONVERSATION] = ExchangedKeys(KEY, FORGED, SHOP)
    forged = first_answer(other)
    both.a.session_keys[CONVERSATION] = ExchangedKeys(FORGED, None, BANK)
    for restart in (False, True):
        if restart:
            both.restart(both.a)
        assert both.a.take([forged], 50 * SECOND).is_empty
    endpoint = both.a.storage.accounts[both.outgoing].endpoint
    assert endpoint.far_session_key == ANSWER


@pytest.mark.threat("T2")
def test_reflected_rows_are_rejected(engine: EngineFactory) -> None:
    """Reflected, with and without reversing the direction."""
    both = full(engine)
    both.a.send(both.outgoing, b"question")
    (row,) = both.a.rows()
    for reflected in (row, {**row, "is_initiator": False}):
        assert both.a.take([reflected]).is_empty
    assert both.a.queue(both.outgoing) == []


def test_a_rolled_back_answer_binds_the_dialog_when_it_arrives_again(engine: EngineFactory) -> None:
    both = full(engine)
    row = first_answer(both)
    both.a.dialogs.undo(both.a.arrived([row]))
    both.a.take([row])
    assert both.a.waiting(both.outgoing) == []
    assert both.a.storage.accounts[both.outgoing].endpoint.far_session_key == ANSWER


def test_a_secured_dialog_may_arrive_from_any_peer(engine: EngineFactory) -> None:
    """The dialog continues after the route through the network has changed."""
    both = full(engine)
    talk(both)
    assert both.a.storage.accounts[both.outgoing].endpoint.far_peer is None
    both.a.send(both.outgoing, b"by another way")
    both.b.take(both.a.rows(50 * SECOND), 50 * SECOND, peer=b"certificate of a forwarder")
    assert both.b.queue(both.incoming) == [b"question", b"by another way"]


@pytest.mark.rule("R8", "P25")
def test_a_second_copy_that_answers_with_its_own_key_gets_an_error(engine: EngineFactory) -> None:
    """-8495 as in an unsecured dialog, under the initiator's key; the first copy is not affected."""
    both, copy = full(engine), full(engine)
    copy.b.storage.broker_instance = C
    copy.b.session_keys[CONVERSATION] = ExchangedKeys(KEY, FORGED, SHOP)
    both.a.send(both.outgoing, b"question")
    first = both.a.rows()
    both.b.take(first)
    copy.b.take(first)
    both.a.take(both.b.rows())
    both.a.session_keys[CONVERSATION] = ExchangedKeys(FORGED, None, BANK)
    copy.b.send(both.incoming, b"from the copy")
    both.a.take(copy.b.rows(SECOND), SECOND)
    errors = [row for row in both.a.rows(SECOND) if is_error(row)]
    copy.b.take(errors, SECOND)
    assert b"<Code>-8495</Code>" in (copy.b.storage.accounts[both.incoming].error or b"")
    both.b.send(both.incoming, b"answer")
    both.a.take(both.b.rows(2 * SECOND), 2 * SECOND)
    assert both.a.queue(both.outgoing) == [b"answer"]
