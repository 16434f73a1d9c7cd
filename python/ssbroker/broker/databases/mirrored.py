"""What a database is in a mirrored pair (N25): told by who runs the pair, kept in the database's file, and asked for by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, get_args

from ssbroker import options
from ssbroker.exceptions import OptionError, SsbrokerError
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.store import mirroring
from ssbroker.store import object_changes as changes
from ssbroker.store.mirroring import Mirroring, Role
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance

UNKNOWN: Final[tuple[MirroringRole, int]] = ("unknown", 0)
"""What is said of a database that is not here; it is no claim (N24)."""
_NUMBER_MAX = 2**63 - 1


def set_role(connection: Connection, objects: Objects, *, role: Role, number: int | None) -> None:
    """Makes a database the principal or the mirror of its pair."""
    if role not in get_args(Role):
        raise OptionError(f'role: expected "principal" or "mirror"; got {role!r:.80}')
    broker = objects.broker
    if number is None:
        takes_over = role == "principal" and broker.mirroring_role == "mirror"
        number = broker.mirroring_number + takes_over
    options.whole(number, name="number", least=broker.mirroring_number, most=_NUMBER_MAX)
    mirroring.write(connection, Mirroring(role, number))
    changes.changed(connection)


def roles_of(instance: Instance, broker_instances: Sequence[bytes]) -> list[tuple[MirroringRole, int]]:
    """What the databases are that deliver, or would if they were no mirrors, under some broker ids; all of it after one look.

    Args:
        instance: The instance that is asked.
        broker_instances: The broker ids.

    Returns:
        For each the role and its number; "unknown" where there is no such database, or nobody can say.
    """
    try:
        brokers = [objects.broker for _, objects in instance.seen()]
    except SsbrokerError:
        brokers = []
    roles: dict[bytes, tuple[MirroringRole, int]] = {
        broker.service_broker_guid: (broker.mirroring_role, broker.mirroring_number)
        for broker in brokers
        if broker.is_broker_enabled
    }
    return [roles.get(each, UNKNOWN) for each in broker_instances]
