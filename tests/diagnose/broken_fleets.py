"""Random fleets in which every conversation is delivered, broken in one to three places, and what their remedies do.

`python -m tests.diagnose.broken_fleets --fleets 2000` is the full run: it prints the results, and exits with status 1 if a remedy
does not do what it must.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa

from ssbroker import Catalog, SsbrokerError, schemas
from ssbroker.diagnose import Finding, Findings, Fleet, lint
from ssbroker.diagnose.assumed_broker_ids import AssumedBrokerIds
from ssbroker.exceptions import DdlWarning
from tests.diagnose.observed_fleets import ObservedFleet
from tests.worlds.universe import NOW

Row = dict[str, Any]


@dataclass
class InstanceRows:
    """The tables of one instance, to be broken."""

    name: str
    databases: list[Row] = field(default_factory=list)
    routes: list[Row] = field(default_factory=list)
    services: list[Row] = field(default_factory=list)
    message_forwarding: bool = False

    @property
    def address(self) -> str:
        return f"TCP://{self.name}.example:4022"

    def add_route(self, database: str, name: str, address: str, **columns: Any) -> None:
        taken = {row["name"] for row in self.routes if row["database"] == database}
        name = next(each for each in (name, *(f"{name} {n}" for n in range(99))) if each not in taken)
        empty = dict.fromkeys(schemas.ROUTES.names)
        self.routes.append(empty | {"database": database, "name": name, "address": address} | columns)

    @property
    def has_copy(self) -> bool:
        """Whether it has a copy of a database."""
        return any(row["name"] == "Copy" for row in self.databases)

    def add_database(self, name: str, broker: bytes | None, *, enabled: bool = True) -> None:
        self.databases.append({"name": name, "service_broker_guid": broker, "is_broker_enabled": enabled})
        self.add_route(name, "AutoCreatedLocal", "LOCAL")

    def catalog(self) -> Catalog:
        numbers: Counter[str] = Counter()
        for row in self.routes:
            numbers[row["database"]] += 1
            row["route_id"] = 65535 + numbers[row["database"]]
        nullable = pa.schema([each.with_nullable(nullable=True) for each in schemas.ROUTES])
        return Catalog(
            pa.Table.from_pylist(self.routes, schema=nullable),
            pa.Table.from_pylist(self.databases, schema=schemas.DATABASES),
            pa.Table.from_pylist(self.services, schema=schemas.SERVICES),
            addresses=[self.address],
            message_forwarding=self.message_forwarding,
        )


class BrokenFleet:
    """A random sound fleet, and the faults in it."""

    def __init__(self, seed: int, *, faults: Sequence[str] | None = None) -> None:
        self.random = Random(seed)
        self._kinds = FAULTS if faults is None else faults
        self.faults: list[str] = []
        self.instances = [InstanceRows(f"i{number}") for number in range(self.random.randint(1, 5))]
        self._create_databases()
        self._connect()
        while not self._is_valid() or not self.faults:
            if len(self.faults) > 20:
                break
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                self._break()

    def fleet(self) -> Fleet:
        """Returns the fleet."""
        return Fleet({each.name: each.catalog() for each in self.instances})

    def _is_valid(self) -> bool:
        try:
            self.fleet()
        except SsbrokerError:
            return False
        return True

    def _id(self) -> bytes:
        return UUID(int=self.random.getrandbits(128), version=4).bytes

    def _create_databases(self) -> None:
        number = 0
        for each in self.instances:
            each.add_database("msdb", self._id() if self.random.random() < 0.5 else None)
            for place in range(self.random.randint(1, 2)):
                name = f"Db{place}"
                each.add_database(name, self._id() if self.random.random() < 0.6 else None)
                for _ in range(self.random.randint(1, 2)):
                    each.services.append({"database": name, "name": f"//{each.name}/S{number}"})
                    number += 1

    def _connect(self) -> None:
        """Creates the routes between some pairs of databases, directly or through a forwarder."""
        ends = [(each, row) for each in self.instances for row in each.databases if row["name"] != "msdb"]
        for _ in range(self.random.randint(1, 4)):
            (one, first), (other, second) = (self.random.choice(ends) for _ in range(2))
            if one is other:
                continue
            hubs = [each for each in self.instances if each not in (one, other)]
            hub = self.random.choice(hubs) if hubs and self.random.random() < 0.3 else None
            for sender, database, receiver, target in ((one, first, other, second), (other, second, one, first)):
                for service in [row["name"] for row in receiver.services if row["database"] == target["name"]]:
                    named = [row for row in sender.routes if row["database"] == database["name"]]
                    if any(row["remote_service_name"] == service for row in named):
                        continue
                    use_id = target["service_broker_guid"] is not None and self.random.random() < 0.4
                    broker = target["service_broker_guid"] if use_id else None
                    name = service.strip("/")
                    via = receiver if hub is None else hub
                    sender.add_route(
                        database["name"], name, via.address, remote_service_name=service, broker_instance=broker
                    )
                    if hub is not None:
                        hub.message_forwarding = True
                        in_msdb = [row["remote_service_name"] for row in hub.routes if row["database"] == "msdb"]
                        if service not in in_msdb:
                            hub.add_route("msdb", name, receiver.address, remote_service_name=service)

    def _routes(self) -> list[tuple[InstanceRows, Row]]:
        return [(each, row) for each in self.instances for row in each.routes]

    def _break(self) -> None:  # noqa: C901, PLR0912, PLR0915 - a list of faults
        fault = self.random.choice(self._kinds)
        named = [(each, row) for each, row in self._routes() if row["remote_service_name"] is not None]
        instance = self.random.choice(self.instances)
        others = [each for each in self.instances if each is not instance]
        database = self.random.choice(instance.databases)
        holder, route = self.random.choice(named) if named else (instance, None)
        match fault:
            case "route dropped" if route:
                holder.routes.remove(route)
            case "wrong port" if route and route["address"].startswith("TCP"):
                route["address"] = route["address"].replace("4022", "4023")
            case "wrong host" if route:
                route["address"] = "TCP://nowhere.example:4022"
            case "wrong instance" if route and others:
                route["address"] = self.random.choice(others).address
            case "expired" if route:
                route["lifetime"] = NOW - timedelta(days=3)
            case "stale id" if route:
                route["broker_instance"] = self._id()
            case "misspelt" if route:
                route["remote_service_name"] = route["remote_service_name"].upper()
            case "to LOCAL" if route:
                route["address"] = "LOCAL"
            case "to TRANSPORT" if route:
                route["address"] = "TRANSPORT"
            case "to itself" if route:
                route["address"] = holder.address
            case "wrong twin" if route:
                holder.add_route(
                    route["database"],
                    "twin",
                    "TCP://nowhere.example:4022",
                    remote_service_name=route["remote_service_name"],
                    broker_instance=route["broker_instance"],
                )
            case "duplicate" if route:
                copied = {name: value for name, value in route.items() if name not in ("database", "name", "address")}
                holder.add_route(route["database"], "copy", route["address"], **copied)
            case "nameless" if route:
                holder.add_route(route["database"], "nameless", route["address"], broker_instance=self._id())
            case "disabled":
                database["is_broker_enabled"] = False
            case "no route in msdb":
                instance.routes = [row for row in instance.routes if row["database"] != "msdb"]
            case "no AutoCreatedLocal":
                instance.routes = [
                    row
                    for row in instance.routes
                    if (row["database"], row["name"]) != (database["name"], "AutoCreatedLocal")
                ]
            case "AutoCreatedLocal changed" if others:
                for row in instance.routes:
                    if (row["database"], row["name"]) == (database["name"], "AutoCreatedLocal"):
                        row["address"] = self.random.choice(others).address
            case "forwarding off":
                instance.message_forwarding = False
            case "forwards" if others and instance.services:
                service = self.random.choice(instance.services)["name"]
                instance.add_route("msdb", "forwards", self.random.choice(others).address, remote_service_name=service)
            case "loop" if others:
                other = self.random.choice(others)
                for one, two in ((instance, other), (other, instance)):
                    one.message_forwarding = True
                    one.add_route("msdb", "loop", two.address, remote_service_name="//nobody")
            case "copy in the instance" if database["name"] != "msdb" and not instance.has_copy:
                same = self.random.random() < 0.5
                instance.add_database("Copy", database["service_broker_guid"] if same else self._id(), enabled=not same)
                instance.services += [
                    {"database": "Copy", "name": row["name"]}
                    for row in instance.services
                    if row["database"] == database["name"]
                ]
            case "copy elsewhere" if others and database["name"] != "msdb":
                other = self.random.choice(others)
                if other.has_copy:
                    return
                other.add_database("Copy", database["service_broker_guid"], enabled=self.random.random() < 0.5)
                other.services += [
                    {"database": "Copy", "name": row["name"]}
                    for row in instance.services
                    if row["database"] == database["name"]
                ]
            case "dynamic routing":
                name = "SQL/ServiceBroker/BrokerConfiguration"
                instance.add_route(database["name"], "dynamic", "LOCAL", remote_service_name=name)
            case _:
                return
        self.faults.append(fault)


FAULTS = (
    "route dropped",
    "wrong port",
    "wrong host",
    "wrong instance",
    "expired",
    "stale id",
    "misspelt",
    "to LOCAL",
    "to TRANSPORT",
    "to itself",
    "wrong twin",
    "duplicate",
    "nameless",
    "disabled",
    "no route in msdb",
    "no AutoCreatedLocal",
    "AutoCreatedLocal changed",
    "forwarding off",
    "forwards",
    "loop",
    "copy in the instance",
    "copy elsewhere",
    "dynamic routing",
)


def after_scripts(fleet: Fleet, finding: Finding, folder: Path) -> Fleet:
    """Returns the fleet after the scripts of a finding, written to files and read again."""
    instances = dict(fleet)
    scripts: dict[str, str] = {}
    for instance, script in finding.scripts:
        scripts[instance] = scripts.get(instance, "") + script.replace("[<endpoint>]", "[ServiceBrokerEndpoint]") + "\n"
    for number, (instance, script) in enumerate(scripts.items()):
        catalog = instances[instance]
        file = folder / f"{number}.sql"
        for row in filter(_is_unwritable, catalog.routes.to_pylist()):
            use = f"USE [{row['database']}];"
            # It is not in the written catalog; another database may have a route with its name.
            script = script.replace(f"{use} DROP ROUTE [{row['name']}];", use)  # noqa: PLW2901
        file.write_text(_writable(catalog).to_ddl(now=NOW) + "\n" + script, encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DdlWarning)
            loaded = Catalog.load(file, now=NOW)
        unwritable = [
            row
            for row in catalog.routes.to_pylist()
            if _is_unwritable(row) and f"USE [{row['database']}]; DROP ROUTE [{row['name']}]" not in scripts[instance]
        ]
        routes = pa.Table.from_pylist([*loaded.routes.to_pylist(), *unwritable], schema=loaded.routes.schema)
        instances[instance] = Catalog(
            routes,
            loaded.databases,
            loaded.services,
            addresses=catalog.addresses,
            message_forwarding=loaded.message_forwarding,
        )
    return AssumedBrokerIds(Fleet(instances)).fleet


def _writable(catalog: Catalog) -> Catalog:
    routes = [row for row in catalog.routes.to_pylist() if not _is_unwritable(row)]
    return Catalog(
        pa.Table.from_pylist(routes, schema=catalog.routes.schema),
        catalog.databases,
        catalog.services,
        addresses=catalog.addresses,
        message_forwarding=catalog.message_forwarding,
    )


def _is_unwritable(row: Row) -> bool:
    """Returns whether CREATE ROUTE would refuse a route."""
    named = row["remote_service_name"] is not None
    return row["address"] == "TRANSPORT" if named else row["broker_instance"] is not None


def _identity(finding: Finding) -> tuple[object, ...]:
    return finding.code, finding.instance, finding.database, finding.object


def conversations_of(finding: Finding, fleet: Fleet) -> list[tuple[str, str | None, str]]:
    """Returns the conversations that a finding of a route or of lost messages is about."""
    if finding.severity != "error" or finding.code in ("SSB010", "SSB020"):
        return []
    if finding.code == "SSB024":
        return [(*related.split("/", 1), str(finding.subject.name)) for related in finding.related]  # type: ignore[misc]
    if finding.route_id is None or finding.instance is None:
        return []
    rows = fleet[finding.instance].routes.to_pylist()
    (route,) = (row for row in rows if (row["database"], row["route_id"]) == (finding.database, finding.route_id))
    if route["remote_service_name"] is None:
        return []
    start = None if finding.database == "msdb" else finding.database
    return [(finding.instance, start, route["remote_service_name"])]


def failures_of(seed: int, folder: Path, counts: Counter[str]) -> list[str]:
    """Returns what is wrong with the remedies of one broken fleet; counts what was found and offered."""
    broken = BrokenFleet(seed)
    fleet = broken.fleet()
    found = lint(fleet, at=NOW)
    failures = []
    counts["fleets"] += 1
    assumed = AssumedBrokerIds(fleet)
    for finding in found:
        counts[f"{finding.severity}s"] += 1
        if not finding.scripts:
            continue
        counts[f"{finding.severity}s with a proven remedy"] += 1
        where = f"seed {seed} ({', '.join(broken.faults)}): {finding}: {finding.remedy}"
        after = after_scripts(assumed.fleet, finding, folder)
        failures += [f"{where}: {text}" for text in _faults_after(finding, found, assumed, after, seed)]
    return failures


def _faults_after(finding: Finding, found: Findings, assumed: AssumedBrokerIds, after: Fleet, seed: int) -> list[str]:
    before = assumed.fleet
    left = lint(after, at=NOW)
    faults = []
    if _identity(finding) in map(_identity, left):
        faults.append("the finding is still there")
    errors = {_identity(each) for each in found if each.severity == "error"}
    # Whether the id of a route is stale is unknown if that of the database was only assumed.
    unknown = {"/".join(place) for place in assumed.databases}
    faults += [
        f"new error {each}"
        for each in left
        if each.severity == "error"
        and _identity(each) not in errors
        and not (each.code == "SSB014" and unknown.intersection(each.related))
    ]
    observed = ObservedFleet(after, random=Random(seed), samples=40)
    if "DROP ROUTE" not in finding.remedy or finding.code not in ("SSB003", "SSB005"):
        for conversation in conversations_of(finding, before):
            if not observed.is_delivered(*conversation):
                faults.append(f"{conversation} is not delivered")
    earlier = ObservedFleet(before, random=Random(seed), samples=40)
    for service, hosts in earlier.hosts.items():
        for instance, database in {place for places in earlier.hosts.values() for place in places}:
            was_delivered = hosts and earlier.is_delivered(instance, database, service)
            if was_delivered and not observed.is_delivered(instance, database, service):
                faults.append(f"{(instance, database, service)} was delivered")
    return faults


def main() -> int:
    """Checks many fleets and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.fleets):
            for failure in failures_of(seed, Path(folder), counts):
                failures.append(failure)
                print(failure, flush=True)
    print(", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items())))
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
