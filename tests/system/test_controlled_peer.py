"""Controlled peers forward rows unchanged."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from ssbroker.broker.network.tls import Trust
from tests.system.controlled_peer import ControlledPeer, row
from tests.system.serve_options import certificate_options, serve_arguments


@pytest.fixture(params=["TLS", "without TLS"])
def trusts(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Trust | None]:
    names = ("one", "two", "three")
    if request.param == "without TLS":
        return dict.fromkeys(names)
    given = certificate_options(tmp_path, names)
    return {name: serve_arguments(given[name])["trust"] for name in names}


@pytest.mark.rule("P24")
def test_rows_arrive_and_are_passed_on_to_a_third_peer(trusts: dict[str, Trust | None]) -> None:
    conversation = uuid.uuid4().bytes
    with (
        ControlledPeer("one", trusts["one"]) as one,
        ControlledPeer("three", trusts["three"]) as three,
        ControlledPeer(
            "two", trusts["two"], forward=lambda received: (three.address, {**received, "hops_remaining": 7})
        ) as two,
    ):
        one.send(two.address, [row(number, conversation_id=conversation) for number in range(5)])
        received = three.wait(lambda rows: len(rows) >= 5)
        assert [each["message_sequence_number"] for each in received] == list(range(5))
        assert {(each["conversation_id"], each["hops_remaining"]) for each in received} == {(conversation, 7)}
        assert [each.peer.name for each in two.received] == ["one"] * 5
        assert {each.peer.principal for each in two.received} == {"one" if trusts["one"] else None}
