"""Properties of an instance that routing does not use; only the diagnostics use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ssbroker import _core

if TYPE_CHECKING:
    from ssbroker.ddl.model import InstanceModel


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceDetails:
    """A service of a database.

    Attributes:
        queue: The queue of the service, as schema and name in lower case.
        accepts_conversations: Whether the service has a contract, so that conversations with it can be started.
    """

    queue: str
    accepts_conversations: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDetails:
    """A queue of a database.

    Attributes:
        schema: The schema, spelled as it was created.
        name: The name, spelled as it was created.
        is_enabled: Whether the queue is enabled.
    """

    schema: str
    name: str
    is_enabled: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointDetails:
    """The Service Broker endpoint.

    Attributes:
        name: The name.
        state: `STARTED`, `STOPPED` or `DISABLED`; None if unknown.
    """

    name: str
    state: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationCount:
    """The number of conversation endpoints of a database in one state.

    Attributes:
        database: The database.
        state: The state, such as `DISCONNECTED_INBOUND`.
        count: The number of endpoints.
        oldest_seconds: The age of the oldest endpoint; None if unknown.
    """

    database: str
    state: str
    count: int
    oldest_seconds: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BindingDetails:
    """A remote service binding of a database.

    Attributes:
        database: The database.
        name: The name.
        service: The remote service.
        user: The local user whose certificate identifies the owner of the remote service.
        has_user: Whether the user exists in the database.
        has_certificate: Whether the user owns a certificate.
    """

    database: str
    name: str
    service: str
    user: str
    has_user: bool
    has_certificate: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceDetails:
    """The known properties of an instance that routing does not use. None means that the source does not provide the property.

    Attributes:
        services: The services, by database and name.
        queues: The queues, by database, and by schema and name in lower case.
        endpoint: The endpoint; None if there is none or it is unknown.
        is_endpoint_known: Whether a missing `endpoint` means that the instance has none, for example because the script drops the endpoint.
        mirroring_roles: The mirroring role of each database whose role is not that of the principal.
        conversations: The number of conversation endpoints by database and state.
        bindings: The remote service bindings, if the source also shows users and certificates.
        is_complete: Whether the source shows all databases and services; a script that creates no database may describe only a part of an instance.
        former_broker_ids: The former broker ids of each database whose current broker id is unknown.
        offline: The databases that are offline.
        specified_addresses: The addresses that were specified explicitly, in normal form, and not derived from an endpoint or a server.
    """

    services: Mapping[tuple[str, str], ServiceDetails] = field(default_factory=dict)
    queues: Mapping[tuple[str, str], QueueDetails] = field(default_factory=dict)
    endpoint: EndpointDetails | None = None
    is_endpoint_known: bool = False
    mirroring_roles: Mapping[str, str] = field(default_factory=dict)
    conversations: tuple[ConversationCount, ...] | None = None
    bindings: tuple[BindingDetails, ...] | None = None
    is_complete: bool = True
    former_broker_ids: Mapping[str, frozenset[bytes]] = field(default_factory=dict)
    offline: frozenset[str] = frozenset()
    specified_addresses: frozenset[str] = frozenset()


NO_DETAILS = InstanceDetails()


def details_of_script(model: InstanceModel) -> InstanceDetails:
    """Returns the details that a script specifies."""
    users = {(database, name.casefold()) for database, name in model.users}
    owners = {
        (database, (certificate.owner or "dbo").casefold()) for (database, _), certificate in model.certificates.items()
    }
    endpoint = model.endpoint
    return InstanceDetails(
        services={
            key: ServiceDetails(queue=".".join(service.queue[1:]), accepts_conversations=bool(service.contracts))
            for key, service in model.services.items()
        },
        queues={
            (database, f"{schema}.{name}"): QueueDetails(
                schema=queue.schema, name=queue.name, is_enabled=queue.settings.status is not False
            )
            for (database, schema, name), queue in model.queues.items()
        },
        # A new endpoint is stopped unless the statement starts it.
        endpoint=None
        if endpoint is None
        else EndpointDetails(
            name=endpoint.name, state=endpoint.settings.state or (None if endpoint.is_assumed else "STOPPED")
        ),
        is_endpoint_known=endpoint is None and model.is_endpoint_dropped,
        bindings=tuple(
            BindingDetails(
                database=database,
                name=name,
                service=binding.service,
                user=binding.user,
                has_user=(database, binding.user.casefold()) in users,
                has_certificate=(database, binding.user.casefold()) in owners,
            )
            for (database, name), binding in model.bindings.items()
            if not model.databases[database].is_assumed
        )
        # Databases that the script does not create already exist, and may contain the users and certificates.
        if model.is_complete
        else None,
        is_complete=model.is_complete,
        former_broker_ids={
            name: frozenset(database.former_guids)
            for name, database in model.databases.items()
            if database.guid is None and database.former_guids
        },
        offline=frozenset(name for name, database in model.databases.items() if database.is_offline),
        specified_addresses=frozenset(map(_core.normalize_address, model.addresses)),
    )
