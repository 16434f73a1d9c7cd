"""The states that the live page and `ssbroker watch` show: what they contain, how often they are made, and how large they are."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ssbroker import Instance
from ssbroker.broker import overview
from ssbroker.exceptions import InputError, UnknownDatabaseError
from ssbroker.web import observer
from ssbroker.web.observer import Observer, explain_waiting
from tests.web.shop import HOSTILE, Clock, create_shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Instance]:
    with create_shop(tmp_path / "shop", background=False) as instance:
        yield instance


def queue(state: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in state["queues"] if row["queue"] == f"dbo.{name}")


def test_a_state_says_what_waits_and_why(shop: Instance) -> None:
    state = Observer(shop).state()
    assert state["instance"] == "shop"
    assert (queue(state, "Intake")["ready"], queue(state, "Archive")["is_receive_enabled"]) == (4, False)
    assert "ZeroDivisionError" in queue(state, "Broken")["problem"]
    waiting = {row["to_service_name"]: row for row in state["transmission_queue"]}
    assert {name: row["messages"] for name, row in waiting.items()} == {"//bank/Payments": 3, f"//nobody/{HOSTILE}": 2}
    nobody = waiting[f"//nobody/{HOSTILE}"]
    assert nobody["transmission_status"].startswith("9796: ")
    assert nobody["cause"] == "at the last attempt, no route led to the service"
    assert nobody["remedy"]
    assert (state["serving"], state["forwarding"], state["problems"]) == (None, None, {})


def test_the_history_has_depths_and_ages(tmp_path: Path) -> None:
    clock = Clock()
    with create_shop(tmp_path / "shop", background=False, clock=clock) as shop:
        observed = Observer(shop, interval=5, clock=clock)
        observed.state()
        clock.seconds += 7
        assert queue(observed.state(), "Intake")["oldest_seconds"] == 7
        with shop.database("Sales").transaction() as t:
            assert t.receive("Intake").num_rows == 4
        clock.seconds += 7
        assert queue(observed.state(), "Intake")["oldest_seconds"] is None
    points = observed.history()["Sales", "dbo.Intake"]
    assert [(ready, age) for _, ready, age in points] == [(4, 0), (4, 7), (0, None)]


def test_a_state_says_which_messages_were_moved(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        jobs = instance.queue("Jobs", on_poison="move", retry_after=0)
        jobs.put(b"poison")
        for _ in range(5):
            with suppress(ZeroDivisionError), jobs.take(timeout=0):
                raise ZeroDivisionError
        (moved,) = Observer(instance).state()["moved"]
    assert (moved["queue"], moved["groups"]) == ("dbo.Jobs", 1)


def test_a_pause_is_a_gap_in_the_history(shop: Instance) -> None:
    clock = Clock()
    observed = Observer(shop, clock=clock)
    observed.state()
    observed.pause()
    clock.seconds += 60
    observed.state()
    assert [ready for _, ready, _ in observed.history()["Sales", "dbo.Intake"]] == [4, None, 4]


def test_states_are_made_at_most_once_in_an_interval(shop: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pages ask."""
    made = []

    def counted(instance: Instance) -> dict[str, Any]:
        made.append(instance)
        return overview.overview_of(instance)

    monkeypatch.setattr(observer, "overview_of", counted)
    clock = Clock()
    observed = Observer(shop, interval=1, clock=clock)
    assert {id(observed.state()) for _ in range(10)} == {id(observed.state())}
    assert (len(made), observed.seconds_until_due()) == (1, 1.0)
    clock.seconds += 1
    observed.state()
    assert len(made) == 2


def test_slow_states_are_made_less_often(shop: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take at most 5% of the time."""
    clock = Clock()

    def slow(instance: Instance) -> dict[str, Any]:
        clock.seconds += 0.5
        return overview.overview_of(instance)

    monkeypatch.setattr(observer, "overview_of", slow)
    observed = Observer(shop, clock=clock)
    observed.state()
    assert observed.seconds_until_due() == 9.5  # 0.5 s of 10 s are gone


def test_large_states_are_cut(shop: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fullest queues are kept."""
    monkeypatch.setattr(observer, "ROWS_MAX", 2)
    monkeypatch.setattr(observer, "QUEUES_MAX", 1)
    observed = Observer(shop)
    state = observed.state()
    assert [row["queue"] for row in state["queues"]] == ["dbo.Intake", "dbo.Broken"]
    assert state["omitted"]["queues"] >= 3
    assert list(observed.history()) == [("Sales", "dbo.Intake")]


def test_totals_include_the_rows_that_a_large_state_omits(shop: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "ROWS_MAX", 1)
    with shop.database("Sales").take("Intake", timeout=0):
        state = Observer(shop).state()
    assert state["totals"] == {
        "ready": 1, "undelivered": 5, "conversations": 6, "connections": 0, "leased_groups": 1, "disabled_queues": 2,
    }  # fmt: skip


def test_history_is_bounded(shop: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "POINTS_MAX", 3)
    clock = Clock()
    observed = Observer(shop, clock=clock)
    for _ in range(5):
        observed.state()
        clock.seconds += 100
    assert {len(points) for points in observed.history().values()} == {3}


def test_a_state_of_a_serving_process_has_its_connections_and_forwarded_messages(shop: Instance) -> None:
    with shop.serve(port=0, allow_unencrypted=True) as server:
        state = Observer(shop).state()
    assert state["serving"]["listens"] == f"127.0.0.1:{server.port}"
    assert state["forwarding"] == {
        "messages": 0, "bytes": 0, "messages_discarded": 0, "pending_messages": 0, "pending_bytes": 0,
    }  # fmt: skip


def test_a_state_changes_no_file(shop: Instance) -> None:
    files = sorted(shop.folder.glob("*.sqlite*"))
    before = {path: path.read_bytes() for path in files if not path.name.endswith("-shm")}
    Observer(shop).state()
    explain_waiting(shop, database="Sales", to_service_name="//bank/Payments")
    assert {path: path.read_bytes() for path in before} == before


def test_explanation_of_the_oldest_message(shop: Instance) -> None:
    found = explain_waiting(shop, database="Sales", to_service_name="//bank/Payments")
    assert str(uuid.UUID(found["conversation_id"])) == found["conversation_id"]
    assert (found["message_sequence_number"], found["from_service_name"]) == (0, "//shop/Orders")
    assert "TCP://bank.example:4022" in found["explanation"]
    nobody = explain_waiting(shop, database="Sales", to_service_name=f"//nobody/{HOSTILE}")
    assert nobody["cause"] == "at the last attempt, no route led to the service"
    assert "Decision: DELAYED" in nobody["explanation"]


def test_explanation_of_messages_with_one_status(tmp_path: Path) -> None:
    """Each row of the page has a status; the messages for one service may have several."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        sales = instance.create_database("Sales")
        sales.create_queue("Replies")
        sales.create_service("//shop/Orders", queue="Replies")
        instance.execute(
            f"USE Sales DROP ROUTE AutoCreatedLocal CREATE ROUTE Bank WITH SERVICE_NAME = '//bank', BROKER_INSTANCE = '{uuid.UUID(int=1)}', ADDRESS = 'TCP://bank'"
        )
        for number in (1, 2):
            with sales.transaction() as t:
                t.send(t.begin_dialog("//shop/Orders", "//bank", broker_instance=uuid.UUID(int=number)), b"three euros")
        rows = Observer(instance).state()["transmission_queue"]
        decisions = [
            explain_waiting(instance, database="Sales", to_service_name="//bank", transmission_status=status)[
                "explanation"
            ].splitlines()[-1][:17]
            for status in (*(row["transmission_status"] for row in rows), "no longer the status of any message")
        ]
    assert [row["transmission_status"][:4] for row in rows] == ["9748", "9750"]
    assert decisions == ["Decision: REMOTE,", "Decision: DELAYED", "Decision: REMOTE,"]


def test_explanation_of_a_reply(tmp_path: Path) -> None:
    """It is routed by the rules for messages of the target."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        sales = instance.create_database("Sales")
        for name in ("A", "B"):
            sales.create_queue(name)
            sales.create_service(f"//{name}", queue=name, contracts=["DEFAULT"])
        with sales.transaction() as t:
            t.send(t.begin_dialog("//A", "//B"), b"question")
        sales.alter_queue("A", status=False)
        with sales.transaction() as t:
            (row,) = t.receive("B").to_pylist()
            t.send(row["conversation_handle"], b"answer")
        found = explain_waiting(instance, database="Sales", to_service_name="//A")
    assert found["from_service_name"] == "//B"
    assert "sender      the target, so this is a reply" in found["explanation"]


def test_explanation_of_what_does_not_wait(shop: Instance) -> None:
    with pytest.raises(InputError, match="no undelivered messages for service '//shop/Intake' in 'Sales'"):
        explain_waiting(shop, database="Sales", to_service_name="//shop/Intake")
    with pytest.raises(UnknownDatabaseError):
        explain_waiting(shop, database="Nowhere", to_service_name="//shop/Intake")
