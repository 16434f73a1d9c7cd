"""Peers with valid certificates that replay, reflect, steal and forge; honest dialogs are not affected.

The dialogs are plain: what stands between is TLS, the principal of the neighbour, and the protocol. What a neighbour through whom a plain
dialog leads may do is said in the docs; secured dialogs, which trust no neighbour, are in the tests of dialog security.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.protocol.events import CorruptedMessage, MessageUndeliverable
from tests.system.applications import INITIATOR, TARGET
from tests.system.controlled_peer import ControlledPeer, Row
from tests.system.forged_rows import acknowledging, forged
from tests.system.honest_instances import Handle, HonestInstances, Side


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[HonestInstances]:
    with HonestInstances(tmp_path) as made:
        yield made


@pytest.fixture
def gate(scene: HonestInstances) -> Iterator[ControlledPeer]:
    """An honest forwarder between the two that records all rows."""
    ways = {TARGET: scene.stock.address, INITIATOR: scene.shop.address}
    trust = scene.trust("gate")
    with ControlledPeer("gate", trust, passes=lambda row: (ways[row["to_service_name"]], row)) as made:
        scene.shop.leads(TARGET, made.address)
        scene.stock.leads(INITIATOR, made.address)
        yield made


@pytest.fixture
def mallory(scene: HonestInstances) -> Iterator[ControlledPeer]:
    """A peer that may connect, but is on no route."""
    with ControlledPeer("mallory", scene.trust("mallory")) as made:
        yield made


def sequenced(rows: list[Row], service: str) -> list[Row]:
    """The messages sent to a service."""
    return [row for row in rows if row["is_sequenced"] and row["to_service_name"] == service]


def talk(side: Side, far: Side) -> tuple[Handle, Handle]:
    """A dialog with one message in each direction; returns both handles."""
    handle = side.begin(far.service, b"one")
    body, far_handle = far.next()
    assert body == b"one"
    far.send(far_handle, b"answer")
    assert side.next()[0] == b"answer"
    return handle, far_handle


@pytest.mark.rule("P18")
@pytest.mark.threat("T2")
def test_replayed_rows_are_duplicates(scene: HonestInstances, gate: ControlledPeer) -> None:
    handle, _ = talk(scene.shop, scene.stock)
    old = sequenced(gate.rows, TARGET)
    for _ in range(3):
        gate.say(scene.stock.address, old)
    scene.shop.send(handle, b"two")
    assert scene.stock.next()[0] == b"two", "what came before it, over the same connection, has been judged"
    assert scene.stock.rest() == []


@pytest.mark.threat("T2")
def test_reflected_rows_are_rejected(scene: HonestInstances, gate: ControlledPeer) -> None:
    handle, far_handle = talk(scene.shop, scene.stock)
    gate.say(scene.shop.address, sequenced(gate.rows, TARGET))
    gate.say(scene.stock.address, sequenced(gate.rows, INITIATOR))
    scene.shop.send(handle, b"two")
    assert scene.stock.next()[0] == b"two"
    scene.stock.send(far_handle, b"answer two")
    assert scene.shop.next()[0] == b"answer two"
    assert (scene.shop.rest(), scene.stock.rest()) == ([], [])
    assert scene.shop.waits_for(MessageUndeliverable)


@pytest.mark.threat("T2")
def test_a_message_moved_into_another_dialog_is_rejected(scene: HonestInstances, gate: ControlledPeer) -> None:
    """The digest of its header covers the dialog in which it was sent."""
    first, _ = talk(scene.shop, scene.stock)
    talk(scene.shop, scene.stock)
    ours, others = (row["conversation_id"] for row in sequenced(gate.rows, TARGET))
    assert ours != others
    stolen = sequenced(gate.rows, TARGET)[1]
    gate.say(scene.stock.address, [{**stolen, "conversation_id": ours, "message_sequence_number": 1}])
    scene.shop.send(first, b"two")
    assert scene.stock.next()[0] == b"two"
    assert scene.stock.rest() == []
    assert scene.stock.waits_for(CorruptedMessage).peer == b"gate"


@pytest.mark.rule("P25")
@pytest.mark.threat("T14")
def test_another_principal_cannot_use_a_stolen_conversation_id(
    scene: HonestInstances, gate: ControlledPeer, mallory: ControlledPeer
) -> None:
    """Nor with the peer's broker id, which is an address: the conversation is bound to the principal that sent it."""
    handle, far_handle = talk(scene.shop, scene.stock)
    there, back = sequenced(gate.rows, TARGET)[0], sequenced(gate.rows, INITIATOR)[0]
    for side, row in ((scene.stock, there), (scene.shop, back)):
        mallory.say(side.address, [forged(row, message_sequence_number=1, message_body=b"stolen")])
        refusal = side.waits_for(MessageUndeliverable, about=lambda event: event.message_sequence_number == 1)
        assert refusal.peer == b"mallory"
    scene.shop.send(handle, b"two")
    assert scene.stock.next()[0] == b"two"
    scene.stock.send(far_handle, b"answer two")
    assert scene.shop.next()[0] == b"answer two"
    assert (scene.shop.rest(), scene.stock.rest()) == ([], [])


@pytest.mark.threat("T14")
def test_two_peers_may_send_the_same_broker_id_in_separate_dialogs(
    scene: HonestInstances, gate: ControlledPeer, mallory: ControlledPeer
) -> None:
    """Like two forwarders, or a clone: an unsecured dialog does not authenticate its sender, and others are not affected."""
    handle, _ = talk(scene.shop, scene.stock)
    row = sequenced(gate.rows, TARGET)[0]
    another = {"conversation_id": uuid.uuid4().bytes, "message_id": uuid.uuid4().bytes}
    mallory.say(scene.stock.address, [forged(row, **another, message_body=b"by a clone")])
    body, of_clone = scene.stock.next()
    assert body == b"by a clone"
    scene.stock.send(of_clone, b"answer")
    scene.shop.waits_for(MessageUndeliverable)
    assert scene.shop.rest() == [], "the answer goes where routes lead, and there nobody has begun that dialog"
    scene.shop.send(handle, b"two")
    assert scene.stock.next()[0] == b"two"


@pytest.mark.threat("T11")
def test_an_acknowledgement_by_another_principal_removes_nothing(
    scene: HonestInstances, gate: ControlledPeer, mallory: ControlledPeer
) -> None:
    handle, _ = talk(scene.shop, scene.stock)
    passes, gate.passes = gate.passes, lambda _: None
    scene.shop.send(handle, b"two")
    row = gate.wait(lambda rows: any(each["message_sequence_number"] == 1 for each in sequenced(rows, TARGET)))[-1]
    mallory.say(scene.shop.address, [acknowledging(row, 1)])
    assert scene.shop.waits_for(MessageUndeliverable).peer == b"mallory"
    gate.passes = passes
    assert scene.stock.next()[0] == b"two", "it was sent again"


@pytest.mark.threat("T11")
def test_an_acknowledgement_of_unsent_messages_is_not_trusted(scene: HonestInstances, gate: ControlledPeer) -> None:
    """Not even by the peer through which the dialog is routed."""
    handle, _ = talk(scene.shop, scene.stock)
    row = sequenced(gate.rows, TARGET)[0]
    gate.say(scene.shop.address, [acknowledging(row, 10**6, from_broker_instance=scene.stock.broker_instance)])
    assert scene.shop.waits_for(MessageUndeliverable, about=lambda event: event.error == 28010).peer == b"gate"
    for body in (b"two", b"three"):
        scene.shop.send(handle, body)
        assert scene.stock.next()[0] == body


@pytest.mark.threat("T17")
def test_a_row_for_an_unknown_service_is_dropped_and_reported(scene: HonestInstances, mallory: ControlledPeer) -> None:
    scene.shop.leads(TARGET, mallory.address)
    scene.shop.begin(TARGET, b"one")
    row = mallory.wait(lambda rows: bool(sequenced(rows, TARGET)))[0]
    mallory.say(scene.stock.address, [forged(row, to_service_name="//Nobody")])
    emitted = scene.stock.waits_for(MessageUndeliverable)
    assert "TCP://" in emitted.text, "the peer is named"
    assert scene.stock.rest() == []
