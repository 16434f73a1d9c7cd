"""The text of `transmission_status`: for each reason a number of Service Broker and what to do."""

from __future__ import annotations

from uuid import UUID

import pytest

from ssbroker import Router
from ssbroker.broker.dialogs import transmission_status
from tests.oracle.world import World
from tests.rules.setting import BCN, NOWHERE, STORES, here, route
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW

LOCAL = route(1, "LOCAL")
THERE = (("Stores", "//Stores"),)


def status_of(world: World, service: str, *, broker_instance: UUID | None = None) -> str:
    """Returns the status of a conversation that began in `Sales`."""
    router = Router(catalog_of(world), tie_break="first")
    found = transmission_status.routing_problem(
        router.explain(service, to_broker_instance=broker_instance, database="Sales", now=NOW)
    )
    return "" if found is None else str(found)


CASES = {
    "no route": (here(), "//Stores", None, "9750", "CREATE ROUTE"),
    "no such service": (here(LOCAL), "//Stores", None, "9796", "CREATE SERVICE [//Stores]"),
    "no such broker id": (here(LOCAL), "//Stores", NOWHERE, "9795", str(NOWHERE)),
    "the id, not the service": (here(LOCAL), "//Stores", STORES, "9793", "USE [Stores]; CREATE SERVICE [//Stores]"),
    "the target is disabled": (
        here(LOCAL, services=THERE, disabled=("Stores",)),
        "//Stores",
        None,
        "28012",
        "ALTER DATABASE [Stores] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE;",
    ),
    "the sender is disabled": (
        here(LOCAL, services=THERE, disabled=("Sales",)),
        "//Stores",
        None,
        "9791",
        "ALTER DATABASE [Sales] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE;",
    ),
    "another instance": (here(route(1, "TCP://far")), "//Stores", None, "9748", "TCP://far:4022"),
    "no address in the name": (here(route(1, "TRANSPORT")), "//Stores", None, "9785", "CREATE ROUTE"),
    "routing is asked for": (here(route(1, "LOCAL", service=BCN)), "//Stores", None, "9770", "BrokerConfiguration"),
    "back here, and on": (
        here(route(1, "TCP://me"), route(2, "TCP://far", table="msdb"), own=("TCP://me",)),
        "//Stores",
        None,
        "9792",
        "MESSAGE_FORWARDING = ENABLED",
    ),
    "back here for ever": (
        here(route(1, "TCP://me"), route(2, "TCP://me", table="msdb"), own=("TCP://me",), forwarding=True),
        "//Stores",
        None,
        "28017",
        "WITH ADDRESS = N'LOCAL'",
    ),
}


@pytest.mark.rule("R18")
@pytest.mark.parametrize(("world", "service", "broker_instance", "number", "reason"), CASES.values(), ids=CASES.keys())
def test_every_reason_has_a_number_and_a_remedy(
    world: World, service: str, broker_instance: UUID | None, number: str, reason: str
) -> None:
    found = status_of(world, service, broker_instance=broker_instance)
    assert found.startswith(f"{number}: ")
    assert reason in found


def test_delivered_messages_have_no_status() -> None:
    assert status_of(here(LOCAL, services=THERE), "//Stores") == transmission_status.NO_PROBLEM


def test_the_call_in_a_status_explains_the_conversation() -> None:
    """The call at its end runs, and explains the same conversation."""
    found = status_of(here(LOCAL), "//Stores", broker_instance=NOWHERE)
    call = found[found.index("explain(") :].removesuffix(".")
    router = Router(catalog_of(here(LOCAL)))
    assert eval(f"router.{call}", {"router": router}).details["conversation"]["to_broker_instance"] == str(NOWHERE)


def test_a_status_fits_its_column() -> None:
    """The column has the type nvarchar(4000)."""
    found = status_of(here(), "//" + "x" * 5000)
    assert len(found) == transmission_status.LENGTH_MAX
    assert found.startswith("9750: ")


@pytest.mark.parametrize(
    ("text", "number", "reason"),
    [
        (
            transmission_status.queue_disabled("Stock", "dbo", "Orders"),
            "11219",
            "USE [Stock]; ALTER QUEUE [dbo].[Orders] WITH STATUS = ON;",
        ),
        (transmission_status.target_locked("Stock"), "9749", "lock_timeout"),
        (transmission_status.unavailable("Stock", "disk is full"), "28012", "disk is full"),
        (transmission_status.other_failure("no memory"), "9798", "no memory"),
        (transmission_status.dropped_by_target(11224, "another copy"), "11224", "another copy"),
    ],
    ids=["queue off", "busy", "unavailable", "unclassified", "undeliverable"],
)
def test_delivery_failures_have_numbers_too(
    text: transmission_status.TransmissionStatus, number: str, reason: str
) -> None:
    assert str(text).startswith(f"{number}: ")
    assert reason in str(text)


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("the dial failed: connection refused", "If the address is wrong: ALTER ROUTE "),
        ("the peer's certificate is not trusted: certificate has expired", "Renew the certificate of the peer"),
        ("the peer's certificate is not trusted: unable to get local issuer certificate", "with the option authority"),
        (
            "the peer's certificate is valid, but bank is not allowed to connect; to accept this peer, use the options authority and names, or the option pinned",
            "If this is not the intended peer, correct the address of the route.",
        ),
        (
            "the peer's certificate is valid, but is not pinned and has no DNS name; to accept this peer, use the option pinned with its certificate, whose SHA-256 fingerprint is 00ff",
            "If this is not the intended peer, correct the address of the route.",
        ),
        (
            "the peer rejects the certificate of this instance: unknown ca",
            "make the peer accept the certificate: there, use the options authority and names",
        ),
    ],
)
def test_the_advice_of_a_failed_connection_fits_its_cause(why: str, advice: str) -> None:
    text = str(transmission_status.unreachable("TCP://bank:4022", why))
    assert text.startswith(f"9754: the next hop TCP://bank:4022 cannot be reached: {why}. ")
    assert advice in text
    assert ("ALTER ROUTE" in text) == ("certificate" not in why)
