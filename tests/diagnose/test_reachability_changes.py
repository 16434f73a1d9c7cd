"""Conversations that end elsewhere after a change, judged by a search over observed decisions of the router."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from ssbroker import Catalog, OptionError
from ssbroker._text import restore_spaces
from ssbroker.diagnose import REACHABILITY_CHANGES, Fleet, RoutingEnd, compare, reachability_changes
from ssbroker.diagnose.problems import listed_names
from ssbroker.diagnose.trace import end_text
from tests.diagnose.random_fleets import SampledFleet
from tests.worlds.universe import NOW

Key = tuple[str, str, str, UUID | None]


def text_of(ends: set[RoutingEnd]) -> str:
    return " | ".join(sorted(restore_spaces(end_text(end)) for end in ends))


def return_text(fleet: SampledFleet, start: tuple[str, str], ends: set[RoutingEnd], services: set[str]) -> str:
    """Describes the services to which the targets of a conversation cannot reply in every case."""
    broker = next(
        row["service_broker_guid"] for row in fleet.fleet[start[0]].databases.to_pylist() if row["name"] == start[1]
    )
    failing: set[str] = set()
    lost: set[RoutingEnd] = set()
    for end in ends:
        for service in services if end.outcome == "DELIVERED" else ():
            back = fleet.ends((str(end.instance), str(end.database), service, UUID(bytes=broker), False))
            if back != {RoutingEnd("DELIVERED", *start)}:
                failing.add(service)
                lost |= back
    return f"; return path to {', '.join(listed_names(sorted(failing)))}: {text_of(lost)}" if failing else ""


def services_of(fleet: SampledFleet, start: tuple[str, str]) -> set[str]:
    rows = fleet.fleet[start[0]].services.to_pylist()
    return {row["name"] for row in rows if row["database"] == start[1]}


def observed_changes(before: SampledFleet, after: SampledFleet) -> Iterator[tuple[Key, tuple[str, str]]]:
    """Yields the ends of all conversations that differ, for ids only if they differ from those without an id."""
    brokers = {
        UUID(bytes=value)
        for fleet in (before.fleet, after.fleet)
        for catalog in fleet.values()
        for value in (
            *catalog.routes["broker_instance"].to_pylist(),
            *catalog.databases["service_broker_guid"].to_pylist(),
        )
        if value is not None
    }
    services = sorted({*before.services, *after.services} - {"unknown service"})
    for instance, database in sorted({*before.databases} & {*after.databases}):
        own = services_of(before, (instance, database)) & services_of(after, (instance, database))
        for service in services:
            without_id = [each.ends((instance, database, service, None, True)) for each in (before, after)]
            for broker in (None, *brokers):
                ends = [each.ends((instance, database, service, broker, True)) for each in (before, after)]
                if broker is None or ends != without_id:
                    old, new = (
                        text_of(found) + return_text(fleet, (instance, database), found, own)
                        for fleet, found in zip((before, after), ends, strict=True)
                    )
                    if old != new:
                        yield (instance, database, service, broker), (old, new)


@pytest.mark.parametrize("seed", range(4))
def test_the_changes_equal_the_observed_ones(seed: int) -> None:
    before, after = SampledFleet(seed), SampledFleet(seed + 30)
    found = reachability_changes(before.fleet, after.fleet, at=NOW)
    assert found.schema == REACHABILITY_CHANGES
    reported = {
        (
            row["instance"],
            row["database"],
            row["service"],
            None if row["broker_id"] is None else UUID(row["broker_id"]),
        ): (
            row["before"],
            row["after"],
        )
        for row in found.to_pylist()
    }
    assert len(reported) == found.num_rows
    expected = dict(observed_changes(before, after))
    assert {key: ends for key, ends in reported.items() if expected.get(key) != ends} == {}
    assert [key for key in expected if key not in reported and is_known(key, before, after)] == []


def is_known(key: Key, before: SampledFleet, after: SampledFleet) -> bool:
    """Returns whether a conversation names no broker id, or one that a route for the service names."""
    return key[3] is None or any(
        row["remote_service_name"] == key[2] and row["broker_instance"] == key[3].bytes
        for fleet in (before.fleet, after.fleet)
        for catalog in fleet.values()
        for row in catalog.routes.to_pylist()
    )


SENDER = """
-- ssbroker: addresses=TCP://north:4022
CREATE DATABASE Sales; USE Sales; CREATE QUEUE Q; CREATE SERVICE [//Sales] ON QUEUE Q;
CREATE ROUTE Out WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://hub:4022';
"""
HUB = """
-- ssbroker: addresses=TCP://hub:4022
CREATE ENDPOINT Hub STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);
USE msdb; CREATE ROUTE Stock WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://stock:4022';
CREATE ROUTE Sales WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://north:4022';
"""
TARGET = """
-- ssbroker: addresses=TCP://stock:4022
CREATE DATABASE Stores; USE Stores; CREATE QUEUE Q; CREATE SERVICE [//Stock] ON QUEUE Q ([DEFAULT]);
CREATE ROUTE Back WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://hub:4022';
"""


FleetMaker = Callable[..., Fleet]


@pytest.fixture
def fleet_of(tmp_path: Path) -> FleetMaker:
    """Makes a fleet of a sender, a forwarder and a target, with some scripts replaced."""

    def make(**scripts: str) -> Fleet:
        catalogs = {}
        for name, script in ({"NORTH": SENDER, "HUB": HUB, "SOUTH": TARGET} | scripts).items():
            (tmp_path / f"{name}.sql").write_text(script, encoding="utf-8")
            catalogs[name] = Catalog.load(tmp_path / f"{name}.sql", now=NOW)
        return Fleet(catalogs)

    return make


def rows(before: Fleet, after: Fleet) -> list[tuple[str, ...]]:
    found = reachability_changes(before, after, at=NOW)
    names = ("effect", "instance", "database", "service", "before", "after")
    return [tuple(row[name] for name in names) for row in found.to_pylist()]


CONVERSATION = ("NORTH", "Sales", "//Stock")
DELIVERED = "DELIVERED to SOUTH/Stores"


def test_a_change_at_a_forwarder_loses_the_conversations_of_the_sender(fleet_of: FleetMaker) -> None:
    wrong = fleet_of(HUB=HUB.replace("TCP://stock", "TCP://stok"))
    gone = "ELSEWHERE: sent to TCP://stok:4022, which is not a known address of any of the instances"
    assert rows(fleet_of(), wrong) == [("lost", *CONVERSATION, DELIVERED, gone)]
    assert rows(wrong, fleet_of()) == [("arrives", *CONVERSATION, gone, DELIVERED)]


def test_a_change_of_hops_that_delivers_to_the_same_database_is_no_change(fleet_of: FleetMaker) -> None:
    """`compare` shows the other next hop of the sender."""
    before = fleet_of()
    after = fleet_of(NORTH=SENDER.replace("TCP://hub", "TCP://stock"))
    assert compare(before, after, at=NOW)
    assert rows(before, after) == []


def test_a_disabled_queue_is_a_change_although_no_route_differs(fleet_of: FleetMaker) -> None:
    disabled = fleet_of(SOUTH=TARGET + "ALTER QUEUE Q WITH STATUS = OFF;\n")
    assert not compare(fleet_of(), disabled, at=NOW)
    found = rows(fleet_of(), disabled)
    assert [row[:2] for row in found] == [("lost", "NORTH"), ("lost", "SOUTH")]
    assert all("queue_disabled" in row[-1] for row in found)


def test_a_dropped_endpoint_loses_the_conversations_like_a_stopped_one(fleet_of: FleetMaker) -> None:
    started = TARGET + "CREATE ENDPOINT SSB STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER ();\n"
    before = fleet_of(SOUTH=started)
    stopped = rows(before, fleet_of(SOUTH=started + "ALTER ENDPOINT SSB STATE = STOPPED;\n"))
    assert stopped[0][0] == "lost"
    assert rows(before, fleet_of(SOUTH=started + "DROP ENDPOINT SSB;\n")) == stopped


def test_a_script_without_an_endpoint_loses_nothing(fleet_of: FleetMaker) -> None:
    started = TARGET + "CREATE ENDPOINT SSB STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER ();\n"
    assert rows(fleet_of(SOUTH=started), fleet_of()) == []


def test_a_dropped_return_route_loses_the_acknowledgements(fleet_of: FleetMaker) -> None:
    dropped = fleet_of(SOUTH=TARGET + "DROP ROUTE Back;\n")
    lost = f'{DELIVERED}; return path to "//Sales": DELAYED: waits in SOUTH (service_not_found)'
    assert rows(fleet_of(), dropped)[0] == ("unacknowledged", *CONVERSATION, DELIVERED, lost)
    assert rows(dropped, fleet_of())[0] == ("acknowledged", *CONVERSATION, lost, DELIVERED)


def test_a_conversation_that_moves_to_a_database_without_a_return_route_is_no_longer_acknowledged(
    fleet_of: FleetMaker,
) -> None:
    other = TARGET.replace("TCP://stock", "TCP://other").replace("TCP://hub", "TCP://hubb")
    moved = rows(fleet_of(OTHER=other), fleet_of(NORTH=SENDER.replace("TCP://hub", "TCP://other"), OTHER=other))
    gone = "ELSEWHERE: sent to TCP://hubb:4022, which is not a known address of any of the instances"
    lost = f'DELIVERED to OTHER/Stores; return path to "//Sales": {gone}'
    assert ("unacknowledged", *CONVERSATION, DELIVERED, lost) in moved


def test_a_new_service_without_a_return_route_loses_no_acknowledgements(fleet_of: FleetMaker) -> None:
    after = fleet_of(NORTH=SENDER + "CREATE SERVICE [//Returns] ON QUEUE Q;\n")
    assert "//Stock" not in {row[3] for row in rows(fleet_of(), after)}


def test_an_address_that_may_belong_to_the_initiator_is_a_return_path(fleet_of: FleetMaker) -> None:
    """The address of NORTH is not specified, so the route of HUB to an unknown address may lead to NORTH."""
    unknown = SENDER.replace("-- ssbroker: addresses=TCP://north:4022", "")
    dropped = fleet_of(NORTH=unknown, SOUTH=TARGET + "DROP ROUTE Back;\n")
    assert rows(fleet_of(NORTH=unknown), dropped)[0][0] == "unacknowledged"


def test_expiry_is_evaluated_at_two_times(fleet_of: FleetMaker) -> None:
    fleet = fleet_of(NORTH=SENDER.replace("N'TCP://hub:4022'", "N'TCP://hub:4022', LIFETIME = 60"))
    found = reachability_changes(fleet, fleet, before_at=NOW, at=NOW.replace(year=NOW.year + 1))
    assert found["effect"].to_pylist() == ["lost"]


def test_databases_of_one_fleet_only_are_left_out(fleet_of: FleetMaker) -> None:
    assert reachability_changes(Fleet({}), fleet_of(), at=NOW).num_rows == 0


def test_a_wrong_time_is_refused(fleet_of: FleetMaker) -> None:
    fleet = fleet_of()
    with pytest.raises(OptionError, match="before_at"):
        reachability_changes(fleet, fleet, before_at="today")  # type: ignore[arg-type]
