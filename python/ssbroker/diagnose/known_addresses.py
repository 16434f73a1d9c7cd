"""The known addresses of the instances of a fleet, and the possible owners of an unknown address."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

from ssbroker._text import shortened_list
from ssbroker.diagnose.catalog_rows import LOCAL, TRANSPORT, Tables
from ssbroker.diagnose.fleet import LOOPBACK, Fleet, how_to_specify_address

LISTED_MAX: Final = 3
"""The maximum number of names that a message lists."""


class Listening(NamedTuple):
    """The instances on a host, each with the port on which it listens.

    Examples:
        >>> str(Listening((("B", "4022"), ("C", "4023"))))
        'B listens on port 4022, and C on port 4023'
    """

    ports: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        of_instances: defaultdict[str, list[str]] = defaultdict(list)
        for instance, port in self.ports:
            of_instances[instance].append(port)
        (first, ports), *others = [(instance, " and ".join(ports)) for instance, ports in of_instances.items()]
        return ", and ".join([f"{first} listens on port {ports}", *(f"{name} on port {more}" for name, more in others)])


class KnownAddresses:
    """The addresses of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet: Final = fleet
        self._known: Final[dict[str, tuple[str, ...]]] = {}
        self._unknown_at: Final[dict[str, dict[str, None]]] = {}

    def of(self, instance: str) -> tuple[str, ...]:
        """Returns the addresses by which other instances reach an instance; empty if they are unknown.

        Loopback addresses such as `localhost` count only if they were specified explicitly. Those of an endpoint in a script
        or of a server do not: the host is not known, and on another machine they lead elsewhere.
        """
        if instance not in self._known:
            catalog = self._fleet[instance]
            own = [address for address in catalog.addresses if self._owners.get(address) == instance]
            specified = catalog.details.specified_addresses if any(map(LOOPBACK.match, own)) else ()
            self._known[instance] = tuple(each for each in own if each in specified or not LOOPBACK.match(each))
        return self._known[instance]

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """The instances without a known address; a route to an unknown address may lead to one of them."""
        replicas = self._fleet.roles  # replicas have the address of the listener
        return tuple(instance for instance in self._fleet if instance not in replicas and not self.of(instance))

    def possible_owners(self, address: str, *, seen_from: str) -> list[str]:
        """Returns other instances that may have an address, because at most their port is known; stops at one more than messages list."""
        unknown = self._unknown_with_port(address)
        return list(islice((other for other in unknown if other != seen_from), LISTED_MAX + 1))

    def may_have(self, instance: str, address: str) -> bool:
        """Returns whether an instance whose address is not known may have an address: a loopback address only if its own port is unknown or the same."""
        return instance in (self._unknown_with_port(address) if LOOPBACK.match(address) else self.unknown)

    def _unknown_with_port(self, address: str) -> dict[str, None]:
        port = address.rpartition(":")[2]
        if port not in self._unknown_at:
            self._unknown_at[port] = dict.fromkeys(
                instance
                for instance in self.unknown
                if not (own := self._fleet[instance].addresses) or any(each.endswith(f":{port}") for each in own)
            )
        return self._unknown_at[port]

    def suggested(self, tables: Mapping[str, Tables]) -> dict[str, str]:
        """Returns, for instances whose address is not known, the unknown address to which most routes for their services lead."""
        hosts: defaultdict[str | None, set[str]] = defaultdict(set)
        for instance, each in tables.items():
            for service in each.hosts:
                hosts[service].add(instance)
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for instance, each in tables.items():
            for route in each.routes:
                others = hosts.get(route.service, set()) - {instance}
                is_unknown = self._fleet.at(route.address, seen_from=instance) is None
                if is_unknown and route.address not in (LOCAL, TRANSPORT) and len(others) == 1:
                    counts[others.pop()][route.address] += 1
        found = {instance: counts[instance].most_common(1)[0][0] for instance in self.unknown if instance in counts}
        return {instance: each for instance, each in found.items() if instance in self._unknown_with_port(each)}

    def listening(self, address: str, *, seen_from: str) -> Listening | None:
        """Returns the ports on the host of an address that no instance has; None if no port is known, or an instance may have the address."""
        ports = self._ports.get(address.rpartition(":")[0])
        if ports is None or self.possible_owners(address, seen_from=seen_from):
            return None
        return Listening(tuple(sorted((instance, port) for port, instance in ports.items())))

    def advice(self, address: str, *, seen_from: str) -> str:
        """Returns what to do about a route to an address that no instance has, on a host whose ports are not known."""
        owners = self.possible_owners(address, seen_from=seen_from)
        if not owners:
            return f"Add the catalog of the instance at this address, and specify its address: {how_to_specify_address(address)}. Or correct the route."
        shown = ", ".join(shortened_list(owners, LISTED_MAX))
        how_to = (
            how_to_specify_address(address, instance=owners[0]) if len(owners) == 1 else how_to_specify_address(address)
        )
        which = owners[0] if len(owners) == 1 else "one of them"
        return (
            f"The address of {shown} is not known. If the route leads to {which}, specify the address: {how_to}. Otherwise add the "
            "catalog of the instance to which it leads, or correct the route."
        )

    @cached_property
    def _owners(self) -> dict[str, str]:
        return dict(self._fleet.addresses)

    @cached_property
    def _ports(self) -> dict[str, dict[str, str]]:
        """The instance of each known port of each known host."""
        found: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for instance in self._fleet:
            for address in self.of(instance):
                host, _, port = address.rpartition(":")
                found[host][port] = instance
        return dict(found)
