"""Users, what belongs to them, what they may do and who they are elsewhere: what may be made, changed and dropped (N20, fact 184)."""

from __future__ import annotations

from typing import Final, Literal

from ssbroker.broker.objects.names import check_object_name
from ssbroker.broker.objects.refusals import existing, refusal, refuse_taken
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import Value
from ssbroker.store.objects import Objects
from ssbroker.store.security import OWNER, PUBLIC, PermissionState
from ssbroker.store.sqlite import Connection

PermissionVerb = Literal["GRANT", "DENY", "REVOKE"]

_STATES: Final[dict[PermissionVerb, PermissionState | None]] = {"GRANT": "G", "DENY": "D", "REVOKE": None}
_BEARERS: Final = (PUBLIC, OWNER)
_EVERYWHERE: Final = ("public", "dbo")
_SERVICE_NAME_MAX: Final = 256


def principal_id(objects: Objects, name: str | None) -> int:
    """The id of a user; None is dbo. Those who are in every database, public and dbo, are known in any case of letters (N43).

    Raises:
        BrokerError: There is none (15151).
    """
    if name is None:
        return OWNER
    if str(name).lower() in _EVERYWHERE and name not in objects.security.principals:
        name = name.lower()
    return existing(objects.security.principals, name, kind="user").principal_id


def create_user(connection: Connection, objects: Objects, *, name: str) -> None:
    """Makes a user."""
    check_object_name(name)
    if name.lower() in _EVERYWHERE:
        raise refusal(f"user {name.lower()!r} is there already", 15023)
    refuse_taken(objects.security.principals, name, kind="user", number=15023)
    changes.create(connection, "ssb_principals", values={"name": name})


def drop_user(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a user to whom nothing belongs; what it was granted goes with it."""
    user = existing(objects.security.principals, name, kind="user")
    if user.principal_id in _BEARERS:
        raise refusal(f"user {name!r} cannot be dropped", 15150)
    held = changes.belonging(connection, principal_id=user.principal_id)
    if held is not None:
        kind, other = held
        raise refusal(f"user {name!r} cannot be dropped: {kind} {other!r} is of that user", 15138)
    changes.drop_send_permissions(connection, principal_id=user.principal_id)
    changes.drop(connection, "ssb_principals", user.principal_id)


def set_owner(connection: Connection, objects: Objects, *, name: str, user: str) -> None:
    """Gives a service to a user, with whose certificates its dialogs are secured from now on."""
    number = existing(objects.services, name, kind="service").service_id
    owner = principal_id(objects, user)
    if owner == PUBLIC:
        raise refusal(f"service {name!r} cannot belong to 'public'")
    changes.alter(connection, "ssb_services", number, {"principal_id": owner})


def set_permission(
    connection: Connection,
    objects: Objects,
    *,
    verb: PermissionVerb,
    service: str,
    users: tuple[str, ...],
    by_control: bool = False,
) -> list[str]:
    """Grants or denies users to send to a service, or takes back what was said.

    Returns:
        Those whose denial stays, since it was said of CONTROL, which lifts none of SEND (N43).
    """
    denied = []
    number = existing(objects.services, service, kind="service").service_id
    for user in users:
        holder = principal_id(objects, user)
        if holder == OWNER:
            raise refusal("'dbo' may always send; nothing can be granted or denied to it", 15151)
        if by_control and verb != "DENY" and objects.security.permissions.get((number, holder)) == "D":
            denied.append(user)
            continue
        changes.set_send_permission(connection, service_id=number, principal_id=holder, state=_STATES[verb])
    return denied


def create_binding(
    connection: Connection, objects: Objects, *, name: str, service: str, user: str, anonymous: bool
) -> None:
    """Says whose certificate a remote service has; from then on dialogs with it are secured."""
    check_object_name(name)
    security = objects.security
    refuse_taken(security.bindings, name, kind="remote service binding")
    if not 0 < len(service) <= _SERVICE_NAME_MAX:
        raise refusal(f"{service!r:.80} is no name of a service: it has to have 1 to 256 characters", 8412)
    other = security.by_service.get(service)
    if other is not None:
        raise refusal(f"service {service!r} is bound by {other.name!r} already", 9619)
    values: dict[str, Value] = {
        "name": name,
        "remote_service_name": service,
        "remote_principal_id": _remote(objects, user),
        "is_anonymous_on": anonymous,
    }
    changes.create(connection, "ssb_remote_service_bindings", values=values)


def alter_binding(
    connection: Connection, objects: Objects, *, name: str, user: str | None = None, anonymous: bool | None = None
) -> None:
    """Changes what is given of a binding."""
    binding = existing(objects.security.bindings, name, kind="remote service binding")
    values: dict[str, Value] = {}
    if user is not None:
        values["remote_principal_id"] = _remote(objects, user)
    if anonymous is not None:
        values["is_anonymous_on"] = anonymous
    changes.alter(connection, "ssb_remote_service_bindings", binding.remote_service_binding_id, values)


def drop_binding(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a binding."""
    binding = existing(objects.security.bindings, name, kind="remote service binding")
    changes.drop(connection, "ssb_remote_service_bindings", binding.remote_service_binding_id)


def _remote(objects: Objects, user: str) -> int:
    found = principal_id(objects, user)
    if found in _BEARERS:
        raise refusal(f"a remote service binding needs a user of its own; {user!r} is none")
    return found
