"""Random fleets that are served for real, and whether each conversation does what `trace` predicts.

`python -m tests.diagnose.served_fleets --fleets 300` is the full run: it prints the results, and exits with status 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from ssbroker import Instance, Server
from ssbroker.diagnose import Fleet, RoutingEnd, trace
from ssbroker.protocol.events import Event, ForwardedMessageDropped, MessageUndeliverable
from tests.diagnose.broken_fleets import FAULTS, BrokenFleet, InstanceRows

PATIENCE = 60.0
"""Seconds until what is predicted must have happened; usually it takes milliseconds, or 4 s for what nobody acknowledges."""
SERVED_FAULTS = tuple(
    fault
    for fault in FAULTS
    # No instance can have these routes, ids or times, and a route request changes the routing of what follows.
    if fault not in ("to TRANSPORT", "nameless", "expired", "copy elsewhere", "dynamic routing")
)
_UNACKNOWLEDGED = "9753"
_UNREACHABLE = "9754"


@dataclass
class Conversation:
    """A conversation that was started, and what is predicted."""

    instance: str
    database: str
    service: str
    possible: tuple[RoutingEnd, ...]
    """The ends of its messages."""
    returns: dict[tuple[str, str], tuple[RoutingEnd, ...]]
    """The ends of answers, by the instance and database of the target."""
    handle: UUID = field(default_factory=lambda: UUID(int=0))
    conversation_id: UUID = field(default_factory=lambda: UUID(int=0))
    target: tuple[str, str] | None = None
    """Where it was delivered."""
    is_answered: bool = False

    def __str__(self) -> str:
        return f"{self.instance}/{self.database} to {self.service}"


class ServedFleet:
    """A random fleet of at most five instances, each served, in this process."""

    def __init__(self, seed: int, folder: Path, stack: ExitStack) -> None:
        self.random = Random(seed)
        self.broken = BrokenFleet(seed, faults=SERVED_FAULTS)
        self.instances: dict[str, Instance] = {}
        self.servers: dict[str, Server] = {}
        self.events: defaultdict[UUID, list[tuple[str, Event]]] = defaultdict(list)
        for rows in self.broken.instances:
            instance = stack.enter_context(Instance.create(folder / rows.name, name=rows.name))
            instance.subscribe(self._note(rows.name), MessageUndeliverable, ForwardedMessageDropped)
            self.instances[rows.name] = instance
            self.servers[rows.name] = stack.enter_context(
                instance.serve(port=0, allow_unencrypted=True, close_timeout=0.1)
            )
        self._ids: dict[bytes, str] = {}
        for rows in self.broken.instances:
            self._create(rows)
        for rows in self.broken.instances:
            self._route(rows)
        self.fleet = Fleet({name: instance.catalog() for name, instance in self.instances.items()})

    def _note(self, name: str) -> Any:
        def note(event: Event) -> None:
            self.events[getattr(event, "conversation_id", UUID(int=0))].append((name, event))

        return note

    def _create(self, rows: InstanceRows) -> None:
        instance = self.instances[rows.name]
        for row in rows.databases:
            if row["name"] == "msdb":
                continue
            database = instance.create_database(row["name"])
            if row["service_broker_guid"] is not None:
                self._ids.setdefault(row["service_broker_guid"], str(database.service_broker_guid))
            database.create_queue("Q")
        for row in rows.services:
            # One service in six only starts conversations.
            contract = "" if self.random.random() < 1 / 6 else " ([DEFAULT])"
            instance.execute(f"USE [{row['database']}]; CREATE SERVICE [{row['name']}] ON QUEUE Q{contract}")

    def _route(self, rows: InstanceRows) -> None:
        instance, port = self.instances[rows.name], self.servers[rows.name].port
        state = "ENABLED" if rows.message_forwarding else "DISABLED"
        instance.execute(
            f"CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = {port}) "
            f"FOR SERVICE_BROKER (MESSAGE_FORWARDING = {state})"
        )
        for row in rows.databases:
            instance.execute(f"USE [{row['name']}]; DROP ROUTE AutoCreatedLocal")
        for row in rows.routes:
            clauses = []
            if row["remote_service_name"] is not None:
                clauses.append(f"SERVICE_NAME = N'{row['remote_service_name']}'")
            if row["broker_instance"] is not None:
                broker = self._ids.get(row["broker_instance"], str(UUID(bytes=row["broker_instance"])))
                clauses.append(f"BROKER_INSTANCE = N'{broker}'")
            clauses.append(f"ADDRESS = N'{self._address(row['address'])}'")
            instance.execute(f"USE [{row['database']}]; CREATE ROUTE [{row['name']}] WITH {', '.join(clauses)}")
        for row in rows.databases:
            if not row["is_broker_enabled"] and row["name"] != "msdb":
                instance.execute(f"ALTER DATABASE [{row['name']}] SET DISABLE_BROKER")

    def _address(self, address: str) -> str:
        for name, server in self.servers.items():
            if address == f"TCP://{name}.example:4022":
                return server.address
        # Nothing listens on these ports.
        return (
            "TCP://127.0.0.1:2"
            if address.endswith("4023")
            else f"TCP://127.0.0.1:{1 if 'nowhere' in address else 3}"
            if address.startswith("TCP")
            else address
        )

    def predict(self) -> Iterator[Conversation]:
        """Yields a conversation for each pair of a database and a service, with its prediction."""
        services = sorted({name for each in self.broken.instances for name in (row["name"] for row in each.services)})
        services += sorted(
            {
                row["remote_service_name"]
                for each in self.broken.instances
                for row in each.routes
                if row["remote_service_name"] not in (None, *services)
            }
        )
        for rows in self.broken.instances:
            own = {row["database"]: row["name"] for row in reversed(rows.services)}
            for database, initiator in own.items():
                for service in services:
                    yield self._prediction(rows.name, database, initiator, service)

    def _prediction(self, instance: str, database: str, initiator: str, service: str) -> Conversation:
        found: dict[tuple[str, str], tuple[RoutingEnd, ...]] = {}
        possible: set[RoutingEnd] = set()
        for number in range(12):  # the id decides between ties, so that each answer is seen
            traced = trace(
                self.fleet,
                service,
                instance=instance,
                database=database,
                from_service_name=initiator,
                conversation_id=UUID(int=self.random.getrandbits(127) + number),
            )
            possible.update(traced.possible)
            if traced.acknowledgement is not None:
                found[str(traced.end.instance), str(traced.end.database)] = traced.acknowledgement.possible
            if len(traced.possible) == 1:
                break
        return Conversation(instance, database, service, tuple(possible), found)

    def start(self, conversation: Conversation) -> None:
        """Starts a conversation and sends a message."""
        database = self.instances[conversation.instance].database(conversation.database)
        rows = next(each for each in self.broken.instances if each.name == conversation.instance)
        initiator = next(row["name"] for row in rows.services if row["database"] == conversation.database)
        with database.transaction() as t:
            conversation.handle = t.begin_dialog(initiator, conversation.service, encryption=False)
            t.send(conversation.handle, b"question")
        for row in self._rows(conversation.instance, conversation.database, "sys.conversation_endpoints"):
            if row["conversation_handle"] == conversation.handle.bytes:
                conversation.conversation_id = UUID(bytes=row["conversation_id"])

    def _rows(self, instance: str, database: str, view: str) -> list[dict[str, Any]]:
        return list(self.instances[instance].view(view, database).to_pylist())

    def answer(self, conversations: dict[UUID, Conversation]) -> None:
        """Answers everything that has arrived at a target, and notes what has returned to its initiator."""
        for name, instance in self.instances.items():
            for database in instance.databases:
                if database.name == "msdb":
                    continue
                with database.transaction() as t:
                    messages = t.receive("Q", top=1000, groups=1000).to_pylist()
                    rows = self._rows(name, database.name, "sys.conversation_endpoints")
                    endpoints = {row["conversation_handle"]: row for row in rows}
                    for message in messages:
                        endpoint = endpoints[message["conversation_handle"]]
                        if message["message_type_name"] != "DEFAULT":
                            continue
                        if endpoint["is_initiator"]:
                            conversations[UUID(bytes=endpoint["conversation_id"])].is_answered = True
                        else:
                            t.send(UUID(bytes=message["conversation_handle"]), b"answer")
                for row in rows:
                    conversation = conversations.get(UUID(bytes=row["conversation_id"]))
                    if not row["is_initiator"] and conversation is not None and conversation.target is None:
                        conversation.target = name, database.name

    def observed(self, conversation: Conversation) -> set[RoutingEnd] | None:
        """Returns the predicted ends of the message that fit what has happened so far; None if it is too early to tell."""
        status, state = self.status(conversation.instance, conversation.database, conversation.handle)
        if conversation.target is not None:
            return {RoutingEnd("DELIVERED", *conversation.target)}
        if state == "ER":
            return {end for end in conversation.possible if end.outcome == "REFUSED"}
        dropped = {name for name, _ in self.events[conversation.conversation_id]}
        fitting = {end for end in conversation.possible if end.outcome == "DROPPED" and end.instance in dropped}
        if dropped:
            fitting |= {end for end in conversation.possible if end.outcome == "LOOP"}
        number = status.partition(":")[0]
        if number == _UNREACHABLE:
            fitting |= {
                end
                for end in conversation.possible
                if end.outcome == "ELSEWHERE" and end.instance == conversation.instance
            }
        elif number == _UNACKNOWLEDGED:
            # A forwarder could not reach the address, or the message circulates.
            fitting |= {
                end
                for end in conversation.possible
                # The error of a refusal returns only if there is a route.
                if end.outcome in ("LOOP", "REFUSED")
                or (end.outcome == "ELSEWHERE" and end.instance != conversation.instance)
            }
        elif number:
            fitting |= {
                end
                for end in conversation.possible
                if end.outcome in ("DELAYED", "DROPPED") and end.instance == conversation.instance
            }
        return fitting if fitting or dropped or number else None

    def status(self, instance: str, database: str, handle: UUID) -> tuple[str, str]:
        """Returns `transmission_status` and state of an endpoint."""
        status = state = ""
        for row in self._rows(instance, database, "sys.transmission_queue"):
            if row["conversation_handle"] == handle.bytes:
                status = str(row["transmission_status"] or "")
        for row in self._rows(instance, database, "sys.conversation_endpoints"):
            if row["conversation_handle"] == handle.bytes:
                state = str(row["state"])
        return status, state

    def is_settled(self, conversation: Conversation) -> bool:
        """Returns whether all that is predicted has happened."""
        ends = self.observed(conversation)
        if not ends:
            return False
        if conversation.target is None or conversation.is_answered:
            return True
        predicted = conversation.returns.get(conversation.target, ())
        is_certain = {(end.outcome, end.instance, end.database) for end in predicted} == {
            ("DELIVERED", conversation.instance, conversation.database)
        }
        if is_certain:
            return False  # until it is answered
        # The answer waits at the target, with a reason.
        instance, database = conversation.target
        for row in self._rows(instance, database, "sys.conversation_endpoints"):
            if row["conversation_id"] == conversation.conversation_id.bytes and not row["is_initiator"]:
                return self.status(instance, database, UUID(bytes=row["conversation_handle"]))[0] != ""
        return False


def differences_of(seed: int, folder: Path, counts: Counter[str]) -> list[str]:
    """Serves one fleet; returns what differs from the prediction, and counts what was predicted."""
    with ExitStack() as stack:
        served = ServedFleet(seed, folder, stack)
        conversations = list(served.predict())
        for each in conversations:
            served.start(each)
        by_id = {each.conversation_id: each for each in conversations}
        due = time.monotonic() + PATIENCE
        open_ones = conversations
        while open_ones and time.monotonic() < due:
            served.answer(by_id)
            open_ones = [each for each in open_ones if not served.is_settled(each)]
            time.sleep(0.05)
        return list(_differences(seed, served, conversations, open_ones, counts))


def _differences(
    seed: int,
    served: ServedFleet,
    conversations: list[Conversation],
    unsettled: list[Conversation],
    counts: Counter[str],
) -> Iterator[str]:
    counts["fleets"] += 1
    counts["conversations"] += len(conversations)
    for each in conversations:
        for end in each.possible:
            counts[f"predicted {end.outcome}"] += 1
        where = f"seed {seed} ({', '.join(served.broken.faults)}): {each}: predicted {each.possible}, answers {each.returns}"
        status = served.status(each.instance, each.database, each.handle)
        seen = f"target {each.target}, answered {each.is_answered}, status {status}, events {served.events[each.conversation_id]}"
        if each in unsettled:
            yield f"{where}: it does not happen: {seen}"
        elif each.target is not None and RoutingEnd("DELIVERED", *each.target) not in each.possible:
            yield f"{where}: delivered to {each.target}: {seen}"
        elif each.is_answered and each.target is not None:
            predicted = each.returns.get(each.target, ())
            if predicted and not any(end.outcome == "DELIVERED" for end in predicted):
                yield f"{where}: an answer returned: {seen}"


def main() -> int:
    """Serves many fleets and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    differences = []
    for seed in range(arguments.seed, arguments.seed + arguments.fleets):
        with tempfile.TemporaryDirectory() as folder:
            for difference in differences_of(seed, Path(folder), counts):
                differences.append(difference)
                print(difference, flush=True)
    print(", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items())))
    print(f"{len(differences)} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
