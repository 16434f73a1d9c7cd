"""Who is known in a database and what may be believed of them: principals, certificates, bindings, permissions (N19, N20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from ssbroker.store.sqlite import Connection

PUBLIC: Final = 0
"""The principal that everybody is."""
OWNER: Final = 1
"""dbo, to whom belongs what names no owner."""

PermissionState = Literal["G", "D"]
"""Granted or denied."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A row of sys.database_principals."""

    principal_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """A row of sys.certificates; the certificate in DER, its private key sealed under the master key, if it is here."""

    certificate_id: int
    name: str
    principal_id: int
    is_active_for_begin_dialog: bool
    fingerprint: bytes
    certificate: bytes = field(repr=False)
    private_key: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """A row of sys.remote_service_bindings."""

    remote_service_binding_id: int
    name: str
    remote_service_name: str
    remote_principal_id: int
    is_anonymous_on: bool


@dataclass(frozen=True, slots=True)
class MasterKey:
    """The master key, sealed under its password, and under the key of the instance where that may open it."""

    by_password: bytes = field(repr=False)
    by_service: bytes | None = field(repr=False)


@dataclass(frozen=True)
class Security:
    """All of it in one database at one moment.

    Attributes:
        principals: By name.
        certificates: By name.
        bindings: By name.
        permissions: Who may send to a service, by service and principal.
        master_key: None where there is none.
    """

    principals: Mapping[str, Principal] = field(default_factory=dict)
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    bindings: Mapping[str, Binding] = field(default_factory=dict)
    permissions: Mapping[tuple[int, int], PermissionState] = field(default_factory=dict)
    master_key: MasterKey | None = None

    @cached_property
    def by_fingerprint(self) -> Mapping[bytes, Certificate]:
        """The certificates by their fingerprints."""
        return {each.fingerprint: each for each in self.certificates.values()}

    @cached_property
    def by_service(self) -> Mapping[str, Binding]:
        """The bindings by their services."""
        return {each.remote_service_name: each for each in self.bindings.values()}

    @cached_property
    def by_principal(self) -> Mapping[int, list[Certificate]]:
        """The certificates by those to whom they belong."""
        found: dict[int, list[Certificate]] = {}
        for each in self.certificates.values():
            found.setdefault(each.principal_id, []).append(each)
        return found

    def certificates_of(self, principal_id: int) -> list[Certificate]:
        """The certificates of a principal."""
        return self.by_principal.get(principal_id, [])

    def may_send(self, service_id: int, principal_id: int, *, owner: int) -> bool:
        """Whether a principal may send to a service: it is the owner's, or granted and not denied to it or to public."""
        if principal_id in (owner, OWNER):
            return True
        states = {self.permissions.get((service_id, each)) for each in (principal_id, PUBLIC)}
        return "G" in states and "D" not in states


def load(connection: Connection) -> Security:
    """Reads all of it as this connection sees it."""
    principals = [Principal(*row) for row in connection.execute(PRINCIPALS)]
    certificates = [certificate_of(*row) for row in connection.execute(CERTIFICATES)]
    bindings = [binding_of(*row) for row in connection.execute(BINDINGS)]
    permissions = {(service, principal): state for service, principal, state in connection.execute(PERMISSIONS)}
    return Security(
        {each.name: each for each in principals},
        {each.name: each for each in certificates},
        {each.name: each for each in bindings},
        permissions,
        load_master_key(connection),
    )


def certificate_of(
    number: int, name: str, owner: int, active: int, fingerprint: bytes, certificate: bytes, key: bytes | None
) -> Certificate:
    """A certificate of its columns."""
    return Certificate(number, name, owner, bool(active), fingerprint, certificate, key)


def binding_of(number: int, name: str, service: str, principal: int, anonymous: int) -> Binding:
    """A binding of its columns."""
    return Binding(number, name, service, principal, bool(anonymous))


def load_master_key(connection: Connection) -> MasterKey | None:
    """The master key, if there is one."""
    keys: list[tuple[Any, ...]] = connection.execute("SELECT by_password, by_service FROM ssb_master_key").fetchall()
    return MasterKey(*keys[0]) if keys else None


def keep_session_key(connection: Connection, endpoint_id: int, key: bytes) -> bytes | None:
    """Gives an endpoint the key with which it sends, unless it has one.

    Args:
        connection: The database, locked.
        endpoint_id: The endpoint.
        key: The key.

    Returns:
        The key that it has now; None where the endpoint is gone.
    """
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET session_key = ? WHERE endpoint_id = ? AND session_key IS NULL",
        (key, endpoint_id),
    )
    found: bytes | None = connection.execute(
        "SELECT session_key FROM ssb_conversation_endpoints WHERE endpoint_id = ?", (endpoint_id,)
    ).get
    return found


def keep_far_certificate(connection: Connection, side: tuple[bytes, bool], fingerprint: bytes) -> None:
    """Notes that the far side of an endpoint has proven itself by another certificate.

    Args:
        connection: The database, locked.
        side: The conversation, and whether its initiator is meant.
        fingerprint: The certificate's.
    """
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET far_certificate = ? WHERE conversation_id = ? AND is_initiator = ?",
        (fingerprint, *side),
    )


PRINCIPALS: Final = "SELECT principal_id, name FROM ssb_principals ORDER BY principal_id"
CERTIFICATES: Final = """
    SELECT certificate_id, name, principal_id, is_active_for_begin_dialog, fingerprint, certificate, private_key
    FROM ssb_certificates ORDER BY certificate_id"""
BINDINGS: Final = """
    SELECT remote_service_binding_id, name, remote_service_name, remote_principal_id, is_anonymous_on
    FROM ssb_remote_service_bindings ORDER BY remote_service_binding_id"""
PERMISSIONS: Final = "SELECT service_id, principal_id, state FROM ssb_send_permissions"
