"""A fleet whose routing is observed: routers are asked many times, and every path is tried."""

from __future__ import annotations

from random import Random
from uuid import UUID

import ssbroker
from ssbroker.diagnose import Finding, Fleet, RoutingEnd
from ssbroker.diagnose.assumed_broker_ids import AssumedBrokerIds
from ssbroker.diagnose.check_context import CheckContext
from ssbroker.diagnose.lint import EXPIRES_WITHIN, problems
from tests.oracle.world import MSDB, Conversation, Decision
from tests.worlds.arrow import batch_of, decisions_of
from tests.worlds.universe import NOW

ConversationKey = tuple[str, str | None, str, UUID | None, bool]
"""Instance, database (None from outside), service, broker id, and whether the initiator sends."""


class ObservedFleet:
    """The decisions of a fleet's routers for many conversation ids."""

    def __init__(self, fleet: Fleet, *, random: Random, samples: int = 80) -> None:
        self.fleet = fleet
        self.random = random
        self._samples = samples
        self._routers = {name: ssbroker.Router(catalog) for name, catalog in fleet.items()}
        self._instance_by_address = {address: name for name, each in fleet.items() for address in each.addresses}
        self._observed: dict[ConversationKey, set[Decision]] = {}

    @property
    def hosts(self) -> dict[str, list[tuple[str, str]]]:
        """The instances and databases that have each service."""
        found: dict[str, list[tuple[str, str]]] = {}
        for instance, catalog in self.fleet.items():
            for row in catalog.services.to_pylist():
                found.setdefault(str(row["name"]), []).append((instance, str(row["database"])))
        return found

    def broker(self, instance: str, database: str) -> UUID | None:
        """Returns the broker id of a database."""
        rows = {row["name"]: row["service_broker_guid"] for row in self.fleet[instance].databases.to_pylist()}
        return None if rows[database] is None else UUID(bytes=rows[database])

    def decisions(self, key: ConversationKey) -> set[Decision]:
        """Returns all observed decisions."""
        if key not in self._observed:
            instance, database, service, broker, is_initiator = key
            batch = batch_of(
                [
                    Conversation(
                        to_service_name=service,
                        database=database,
                        to_broker_instance=broker,
                        is_initiator=is_initiator,
                        conversation_id=UUID(int=self.random.getrandbits(128)),
                    )
                    for _ in range(self._samples)
                ]
            )
            self._observed[key] = set(decisions_of(self._routers[instance].route(batch, now=NOW)))
        return self._observed[key]

    def next_place(self, key: ConversationKey, decision: Decision) -> RoutingEnd | ConversationKey:
        """Returns where a decision leads."""
        instance, _, service, broker, is_initiator = key
        if decision.outcome == "LOCAL":
            return RoutingEnd("DELIVERED", instance, decision.target_database)
        if decision.next_hop_address is None:
            # What comes from another instance never waits: its sender sends it again.
            waits = decision.outcome == "DELAYED" and key[1] is not None
            return RoutingEnd("DELAYED" if waits else "DROPPED", instance, reason=decision.reason)
        next_instance = self._instance_by_address.get(decision.next_hop_address)
        if next_instance is None:
            return RoutingEnd("ELSEWHERE", instance, address=decision.next_hop_address)
        next_id = decision.broker_instance if decision.outcome == "REMOTE" else broker
        return next_instance, None, service, next_id, is_initiator

    def ends(self, key: ConversationKey, visited: tuple[ConversationKey, ...] = ()) -> set[RoutingEnd]:
        """Returns every end, by trying every path; a path that returns to a visited place is a loop.

        No instance sends a message back to the instance that it came from.
        """
        found: set[RoutingEnd] = set()
        for decision in self.decisions(key):
            next_place = self.next_place(key, decision)
            if isinstance(next_place, RoutingEnd):
                found.add(next_place)
            elif visited and next_place[0] == visited[-1][0]:
                found.add(RoutingEnd("DROPPED", key[0], reason="sent_back"))
            elif next_place in visited or next_place == key:
                found.add(RoutingEnd("LOOP", reason="routing_loop"))
            else:
                found |= self.ends(next_place, (*visited, key))
        return found

    def is_delivered(self, instance: str, database: str | None, service: str) -> bool:
        """Returns whether a conversation always reaches a database that has the service, and its answers always return."""
        ends = self.ends((instance, database, service, None, True))
        if any(end.outcome == "ELSEWHERE" for end in ends) and service not in self.hosts:
            ends = {end for end in ends if end.outcome != "ELSEWHERE"}
        if any(end.outcome != "DELIVERED" for end in ends):
            return False
        return database is None or all(
            (instance, database) == (end.instance, end.database)
            or self.ends((str(end.instance), end.database, name, self.broker(instance, database), False))
            == {RoutingEnd("DELIVERED", instance, database)}
            for end in ends
            for name, hosts in self.hosts.items()
            if (instance, database) in hosts
        )


def databases_with_conversations(fleet: Fleet) -> list[tuple[str, str]]:
    """Returns every database in which conversations start."""
    return [
        (instance, name)
        for instance, catalog in fleet.items()
        for name in map(str, catalog.databases["name"].to_pylist())
        if name != MSDB or MSDB in catalog.services["database"].to_pylist()
    ]


def unproven_findings(fleet: Fleet) -> list[Finding]:
    """Returns what `lint` finds, without the time that it takes to prove remedies."""
    context = CheckContext(fleet=AssumedBrokerIds(fleet).fleet, now=NOW, until=NOW + EXPIRES_WITHIN)
    return [problem.finding for problem in problems(context)]
