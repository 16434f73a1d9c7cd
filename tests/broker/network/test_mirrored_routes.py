"""Queries to the two addresses of a mirrored route, and its events (R51 to R54)."""

from __future__ import annotations

import uuid

import pytest

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.network import mirrored_routes
from ssbroker.broker.network.mirrored_routes import (
    ANSWER_TIMEOUT,
    ASK_AFTER_USE,
    CHECK_INTERVAL,
    MirroredAddresses,
    MirroredRoutes,
)
from ssbroker.protocol.events import Event, MirroredRouteStateChanged
from tests.broker.conftest import Clock
from tests.broker.network.forwarded_rows import Outboxes

A = "TCP://a.example:4022"
M = "TCP://m.example:4022"
GUID = uuid.UUID(int=7).bytes


class Sender:
    """An instance with mirrored routes; the test answers its queries."""

    def __init__(self, instance: Instance, clock: Clock) -> None:
        self.clock = clock
        self.endpoint = Outboxes()
        self.changes = 0
        self.emitted: list[tuple[str, str | None]] = []
        self.routes = MirroredRoutes(instance_context(instance), self.endpoint, changed=self.count)
        instance.subscribe(self.note, MirroredRouteStateChanged)

    def count(self, pair: MirroredAddresses) -> None:
        assert pair == (A, M, GUID)
        self.changes += 1

    def note(self, event: Event) -> None:
        assert isinstance(event, MirroredRouteStateChanged)
        assert (event.address, event.mirror_address, event.broker_instance.bytes) == (A, M, GUID)
        assert event.text
        self.emitted.append((event.state, event.principal_address))

    @property
    def now(self) -> int:
        return epoch_microseconds(self.clock())

    def resolve(self) -> str | None:
        return self.routes.resolve(A, M, GUID)

    def queried_addresses(self) -> list[str]:
        """Returns the addresses queried since the last call."""
        queries, self.endpoint.role_queries = self.endpoint.role_queries, []
        assert all(guid == GUID for _, guid in queries)
        return [address for address, _ in queries]

    def advance_until_due(self) -> None:
        due = self.routes.run_due(now=self.now)
        assert due is not None
        self.clock.advance(seconds=(due - self.now) / 1e6)
        self.routes.run_due(now=self.now)


@pytest.fixture
def sender(instance: Instance, clock: Clock) -> Sender:
    return Sender(instance, clock)


def find_principal(sender: Sender, address: str, *, number: int = 1) -> None:
    """Makes the sender find the principal."""
    sender.resolve()
    sender.routes.role_received(address, GUID, "principal", number)
    sender.routes.role_received(M if address == A else A, GUID, "mirror", 0)
    assert sender.resolve() == address
    assert sender.queried_addresses() == [A, M]


@pytest.mark.rule("R51", "R52")
def test_both_are_queried_once_and_all_rows_are_sent_to_the_principal(sender: Sender) -> None:
    assert [sender.resolve() for _ in range(3)] == [None] * 3
    assert sender.queried_addresses() == [A, M]
    sender.routes.role_received(M, GUID, "principal", 3)
    assert sender.resolve() is None
    assert sender.changes == 0
    sender.routes.role_received(A, GUID, "mirror", 2)
    assert sender.resolve() == M
    assert (sender.changes, sender.emitted) == (1, [("PRINCIPAL_IS_MIRROR", M)])


@pytest.mark.rule("R52")
def test_only_the_principal_is_queried_while_it_is_used(sender: Sender) -> None:
    find_principal(sender, A)
    sender.clock.advance(seconds=CHECK_INTERVAL / 1e6)
    assert sender.resolve() == A
    assert sender.queried_addresses() == [A]
    sender.routes.role_received(A, GUID, "principal", 1)
    sender.clock.advance(seconds=1)
    assert sender.resolve() == A
    assert sender.routes.run_due(now=sender.now) is not None
    assert sender.queried_addresses() == []
    assert sender.changes == 1


@pytest.mark.rule("R53")
def test_the_mirror_takes_over_once_it_claims(sender: Sender) -> None:
    """Without a message in between."""
    find_principal(sender, A)
    sender.routes.connection_failed(A)
    assert sender.resolve() is None
    assert sender.queried_addresses() == [A, M]
    sender.routes.role_received(M, GUID, "principal", 2)
    assert sender.resolve() == M
    assert sender.emitted == [("PRINCIPAL_IS_ADDRESS", A), ("LOST_ADDRESS", None), ("PRINCIPAL_IS_MIRROR", M)]
    assert sender.changes == 3


@pytest.mark.rule("R54")
def test_nothing_is_sent_while_the_partner_is_silent(sender: Sender) -> None:
    """Both are queried repeatedly until the principal is reachable."""
    find_principal(sender, A)
    sender.routes.connection_failed(A)
    for _ in range(10):
        assert sender.resolve() is None
        assert sender.queried_addresses() == [A, M]
        sender.routes.connection_failed(A)
        sender.advance_until_due()  # the mirror does not answer in time
        sender.advance_until_due()
    assert sender.emitted == [("PRINCIPAL_IS_ADDRESS", A), ("LOST_ADDRESS", None)]
    sender.routes.role_received(A, GUID, "principal", 1)
    sender.routes.role_received(M, GUID, "mirror", 0)
    assert sender.resolve() == A


@pytest.mark.rule("R54", "R52")
def test_a_clock_set_back_does_not_prevent_queries(sender: Sender) -> None:
    """Neither queries for a principal nor checks of the current one."""
    sender.resolve()
    for address in (A, M):
        sender.routes.connection_failed(address)
    sender.clock.advance(seconds=-3600)
    sender.queried_addresses()
    assert sender.resolve() is None
    sender.advance_until_due()
    assert sender.queried_addresses() == [A, M]
    sender.routes.role_received(A, GUID, "principal", 1)
    sender.routes.role_received(M, GUID, "mirror", 0)
    sender.clock.advance(seconds=-3600)
    assert sender.resolve() == A
    sender.clock.advance(seconds=CHECK_INTERVAL / 1e6)
    assert sender.resolve() == A
    assert sender.queried_addresses() == [A]


@pytest.mark.rule("R54")
def test_an_address_that_is_reachable_again_is_queried_immediately(sender: Sender) -> None:
    find_principal(sender, A)
    sender.routes.connection_failed(A)
    sender.routes.connection_failed(A)
    sender.routes.connection_failed(M)
    sender.queried_addresses()
    sender.routes.connected(A)
    assert sender.queried_addresses() == [A, M]


@pytest.mark.rule("R51")
def test_answers_are_awaited_for_at_most_10_s(sender: Sender) -> None:
    sender.resolve()
    sender.routes.role_received(A, GUID, "principal", 1)
    assert sender.routes.run_due(now=sender.now) == sender.now + ANSWER_TIMEOUT
    sender.advance_until_due()
    assert sender.resolve() == A


@pytest.mark.rule("R54")
@pytest.mark.threat("T23")
def test_equal_claims_hold_everything_and_are_reported(sender: Sender) -> None:
    sender.resolve()
    sender.routes.role_received(A, GUID, "principal", 3)
    sender.routes.role_received(M, GUID, "principal", 3)
    assert sender.resolve() is None
    assert sender.emitted == [("CONTESTED", None)]


def test_other_routes_and_broker_ids_are_not_affected(sender: Sender) -> None:
    other = uuid.UUID(int=8).bytes
    find_principal(sender, A)
    assert sender.routes.resolve(A, M, other) is None
    sender.routes.role_received(A, other, "mirror", 0)
    sender.routes.role_received("TCP://c.example:4022", GUID, "mirror", 9)
    sender.routes.connection_failed("TCP://c.example:4022")
    assert sender.resolve() == A


def test_an_address_that_two_routes_share_answers_for_both(sender: Sender) -> None:
    find_principal(sender, A)
    assert sender.routes.resolve(M, "TCP://c.example:4022", GUID) is None
    sender.routes.role_received(M, GUID, "mirror", 0)
    sender.endpoint.role_queries.clear()
    sender.routes.connection_failed("TCP://c.example:4022")
    assert sender.resolve() == A


@pytest.mark.rule("R51")
def test_without_a_broker_id_nothing_is_queried(sender: Sender) -> None:
    """A mirrored route requires one."""
    assert sender.routes.resolve(A, M, None) is None
    assert sender.queried_addresses() == []


@pytest.mark.rule("R54")
def test_queries_end(sender: Sender) -> None:
    """Once no message needs the route."""
    sender.resolve()
    end = sender.now + 2 * ASK_AFTER_USE
    while (due := sender.routes.run_due(now=sender.now)) is not None:
        sender.clock.advance(seconds=max(due - sender.now, 1) / 1e6)
        assert sender.now < end
    sender.queried_addresses()
    sender.clock.advance(seconds=ASK_AFTER_USE / 1e6)
    sender.resolve()
    assert sender.queried_addresses() == [A, M]


def test_the_number_of_known_addresses_is_limited(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers choose broker ids."""
    monkeypatch.setattr(mirrored_routes, "ROUTES_MAX", 3)
    find_principal(sender, A)
    for number in range(100, 102):
        sender.routes.resolve(A, M, uuid.UUID(int=number).bytes)
    assert sender.resolve() == A
    for number in range(200, 202):
        sender.routes.resolve(A, M, uuid.UUID(int=number).bytes)
    assert sender.resolve() == A, "it was used most recently"
    for number in range(300, 303):
        sender.routes.resolve(A, M, uuid.UUID(int=number).bytes)
    assert sender.resolve() is None


def test_an_instance_reports_the_roles_of_its_databases(sender: Sender, sales: Database) -> None:
    guid = sales.service_broker_guid.bytes
    assert sender.routes.mirroring_roles([guid]) == [("principal", 0)]
    sales.set_mirroring_role("mirror", number=2)
    assert sender.routes.mirroring_roles([GUID, guid, guid]) == [("unknown", 0), ("mirror", 2), ("mirror", 2)]
