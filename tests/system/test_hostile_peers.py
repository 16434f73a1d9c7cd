"""Peers with valid certificates that replay, reflect, steal and forge; honest dialogs are not affected.

The dialogs are not secured: only TLS, the peer's principal and the protocol protect them. The docs describe what a
forwarding peer can do to such dialogs; the tests of dialog security cover secured dialogs, which need not trust any
peer.
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
from tests.system.honest_instances import Handle, HonestInstance, HonestInstances


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[HonestInstances]:
    with HonestInstances(tmp_path) as opened:
        yield opened


@pytest.fixture
def gate(scene: HonestInstances) -> Iterator[ControlledPeer]:
    """An honest forwarder between the two that records all rows."""
    rows_by_address = {TARGET: scene.stock.address, INITIATOR: scene.shop.address}
    trust = scene.trust("gate")
    with ControlledPeer("gate", trust, forward=lambda row: (rows_by_address[row["to_service_name"]], row)) as opened:
        scene.shop.create_route(TARGET, opened.address)
        scene.stock.create_route(INITIATOR, opened.address)
        yield opened


@pytest.fixture
def mallory(scene: HonestInstances) -> Iterator[ControlledPeer]:
    """A peer that may connect, but is on no route."""
    with ControlledPeer("mallory", scene.trust("mallory")) as opened:
        yield opened


def sequenced(rows: list[Row], service: str) -> list[Row]:
    """Returns the messages sent to a service."""
    return [row for row in rows if row["is_sequenced"] and row["to_service_name"] == service]


def exchange(side: HonestInstance, peer: HonestInstance) -> tuple[Handle, Handle]:
    """Starts a dialog with one message in each direction; returns both handles."""
    handle = side.begin_dialog(peer.service, b"one")
    body, peer_handle = peer.receive_one()
    assert body == b"one"
    peer.send(peer_handle, b"answer")
    assert side.receive_one()[0] == b"answer"
    return handle, peer_handle


@pytest.mark.rule("P18")
@pytest.mark.threat("T2")
def test_replayed_rows_are_duplicates(scene: HonestInstances, gate: ControlledPeer) -> None:
    handle, _ = exchange(scene.shop, scene.stock)
    old = sequenced(gate.rows, TARGET)
    for _ in range(3):
        gate.send(scene.stock.address, old)
    scene.shop.send(handle, b"two")
    assert scene.stock.receive_one()[0] == b"two", "the rows before it, over the same connection, were processed"
    assert scene.stock.receive_all() == []


@pytest.mark.threat("T2")
def test_reflected_rows_are_rejected(scene: HonestInstances, gate: ControlledPeer) -> None:
    handle, peer_handle = exchange(scene.shop, scene.stock)
    gate.send(scene.shop.address, sequenced(gate.rows, TARGET))
    gate.send(scene.stock.address, sequenced(gate.rows, INITIATOR))
    scene.shop.send(handle, b"two")
    assert scene.stock.receive_one()[0] == b"two"
    scene.stock.send(peer_handle, b"answer two")
    assert scene.shop.receive_one()[0] == b"answer two"
    assert (scene.shop.receive_all(), scene.stock.receive_all()) == ([], [])
    assert scene.shop.wait_for_event(MessageUndeliverable)


@pytest.mark.threat("T2")
def test_a_message_moved_into_another_dialog_is_rejected(scene: HonestInstances, gate: ControlledPeer) -> None:
    """The digest of its header covers the dialog in which it was sent."""
    first, _ = exchange(scene.shop, scene.stock)
    exchange(scene.shop, scene.stock)
    ours, others = (row["conversation_id"] for row in sequenced(gate.rows, TARGET))
    assert ours != others
    stolen = sequenced(gate.rows, TARGET)[1]
    gate.send(scene.stock.address, [{**stolen, "conversation_id": ours, "message_sequence_number": 1}])
    scene.shop.send(first, b"two")
    assert scene.stock.receive_one()[0] == b"two"
    assert scene.stock.receive_all() == []
    assert scene.stock.wait_for_event(CorruptedMessage).peer == b"gate"


@pytest.mark.rule("P25")
@pytest.mark.threat("T14")
def test_another_principal_cannot_use_a_stolen_conversation_id(
    scene: HonestInstances, gate: ControlledPeer, mallory: ControlledPeer
) -> None:
    """Not even with the peer's broker id, which is an address:

    the conversation is bound to the principal that sent it.
    """
    handle, peer_handle = exchange(scene.shop, scene.stock)
    there, back = sequenced(gate.rows, TARGET)[0], sequenced(gate.rows, INITIATOR)[0]
    for side, row in ((scene.stock, there), (scene.shop, back)):
        mallory.send(side.address, [forged(row, message_sequence_number=1, message_body=b"stolen")])
        refusal = side.wait_for_event(MessageUndeliverable, matches=lambda event: event.message_sequence_number == 1)
        assert refusal.peer == b"mallory"
    scene.shop.send(handle, b"two")
    assert scene.stock.receive_one()[0] == b"two"
    scene.stock.send(peer_handle, b"answer two")
    assert scene.shop.receive_one()[0] == b"answer two"
    assert (scene.shop.receive_all(), scene.stock.receive_all()) == ([], [])


@pytest.mark.threat("T14")
def test_two_peers_may_send_the_same_broker_id_in_separate_dialogs(
    scene: HonestInstances, gate: ControlledPeer, mallory: ControlledPeer
) -> None:
    """Like two forwarders, or a clone: an unsecured dialog does not authenticate its sender, and others are not affected."""
    handle, _ = exchange(scene.shop, scene.stock)
    row = sequenced(gate.rows, TARGET)[0]
    another = {"conversation_id": uuid.uuid4().bytes, "message_id": uuid.uuid4().bytes}
    mallory.send(scene.stock.address, [forged(row, **another, message_body=b"by a clone")])
    body, clone_handle = scene.stock.receive_one()
    assert body == b"by a clone"
    scene.stock.send(clone_handle, b"answer")
    scene.shop.wait_for_event(MessageUndeliverable)
    assert scene.shop.receive_all() == [], (
        "the reply follows the routes to an instance that has not started that dialog"
    )
    scene.shop.send(handle, b"two")
    assert scene.stock.receive_one()[0] == b"two"


@pytest.mark.threat("T11")
def test_an_acknowledgement_by_another_principal_removes_nothing(
    scene: HonestInstances, gate: ControlledPeer, mallory: ControlledPeer
) -> None:
    handle, _ = exchange(scene.shop, scene.stock)
    forward, gate.forward = gate.forward, lambda _: None
    scene.shop.send(handle, b"two")
    row = gate.wait(lambda rows: any(each["message_sequence_number"] == 1 for each in sequenced(rows, TARGET)))[-1]
    mallory.send(scene.shop.address, [acknowledging(row, 1)])
    assert scene.shop.wait_for_event(MessageUndeliverable).peer == b"mallory"
    gate.forward = forward
    assert scene.stock.receive_one()[0] == b"two", "the message was sent again"


@pytest.mark.threat("T11")
def test_an_acknowledgement_of_unsent_messages_is_not_trusted(scene: HonestInstances, gate: ControlledPeer) -> None:
    """Not even by the peer through which the dialog is routed."""
    handle, _ = exchange(scene.shop, scene.stock)
    row = sequenced(gate.rows, TARGET)[0]
    gate.send(scene.shop.address, [acknowledging(row, 10**6, from_broker_instance=scene.stock.broker_instance)])
    assert scene.shop.wait_for_event(MessageUndeliverable, matches=lambda event: event.error == 28010).peer == b"gate"
    for body in (b"two", b"three"):
        scene.shop.send(handle, body)
        assert scene.stock.receive_one()[0] == body


@pytest.mark.threat("T17")
def test_a_row_for_an_unknown_service_is_dropped_and_reported(scene: HonestInstances, mallory: ControlledPeer) -> None:
    scene.shop.create_route(TARGET, mallory.address)
    scene.shop.begin_dialog(TARGET, b"one")
    row = mallory.wait(lambda rows: bool(sequenced(rows, TARGET)))[0]
    mallory.send(scene.stock.address, [forged(row, to_service_name="//Nobody")])
    emitted = scene.stock.wait_for_event(MessageUndeliverable)
    assert "TCP://" in emitted.text, "the event names the peer"
    assert scene.stock.receive_all() == []
