"""Security objects of a database: principals, certificates, bindings, permissions and master keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from ssbroker.store.sqlite import Connection

PUBLIC: Final = 0
"""The id of `public`, to which every principal belongs."""
OWNER: Final = 1
"""Id of `dbo`, the default owner."""

PermissionState = Literal["G", "D"]
"""Granted or denied."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A row of `sys.database_principals`."""

    principal_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """A row of `sys.certificates`, with the certificate in DER; the private key, if present, is encrypted by the master key."""

    certificate_id: int
    name: str
    principal_id: int
    is_active_for_begin_dialog: bool
    fingerprint: bytes
    certificate: bytes = field(repr=False)
    private_key: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """A row of `sys.remote_service_bindings`."""

    remote_service_binding_id: int
    name: str
    remote_service_name: str
    remote_principal_id: int
    is_anonymous_on: bool


@dataclass(frozen=True, slots=True)
class MasterKey:
    """Master key, encrypted by its password and, if the instance may open it, by the service master key."""

    by_password: bytes = field(repr=False)
    by_service: bytes | None = field(repr=False)


@dataclass(frozen=True)
class Security:
    """Security objects of a database.

    Attributes:
        principals: Principals by name.
        certificates: Certificates by name.
        bindings: Bindings by name.
        permissions: SEND permissions by service and principal.
        master_key: The master key; None if there is none.
    """

    principals: Mapping[str, Principal] = field(default_factory=dict)
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    bindings: Mapping[str, Binding] = field(default_factory=dict)
    permissions: Mapping[tuple[int, int], PermissionState] = field(default_factory=dict)
    master_key: MasterKey | None = None

    @cached_property
    def principal_names(self) -> Mapping[int, str]:
        """The names of principals by id."""
        return {each.principal_id: each.name for each in self.principals.values()}

    @cached_property
    def by_fingerprint(self) -> Mapping[bytes, Certificate]:
        """Certificates by fingerprint."""
        return {each.fingerprint: each for each in self.certificates.values()}

    @cached_property
    def by_service(self) -> Mapping[str, Binding]:
        """Bindings by remote service."""
        return {each.remote_service_name: each for each in self.bindings.values()}

    @cached_property
    def by_principal(self) -> Mapping[int, list[Certificate]]:
        """Certificates by the id of the principal that owns them."""
        by_principal: dict[int, list[Certificate]] = {}
        for each in self.certificates.values():
            by_principal.setdefault(each.principal_id, []).append(each)
        return by_principal

    def certificates_of(self, principal_id: int) -> list[Certificate]:
        """Returns the certificates of a principal."""
        return self.by_principal.get(principal_id, [])

    def may_send(self, service_id: int, fingerprint: bytes | None, *, owner: int) -> bool:
        """Returns whether the user that owns a certificate, or public without a certificate, may start a conversation with a service.

        A user may do so if it owns the service, or if SEND is granted and not denied to the user or to public.
        """
        holder = None if fingerprint is None else self.by_fingerprint.get(fingerprint)
        principal_id = PUBLIC if holder is None else holder.principal_id
        if principal_id in (owner, OWNER):
            return True
        states = {self.permissions.get((service_id, each)) for each in (principal_id, PUBLIC)}
        return "G" in states and "D" not in states


def load(connection: Connection) -> Security:
    """Reads all security objects."""
    principals = [Principal(*row) for row in connection.execute(PRINCIPALS)]
    certificates = [certificate_from_row(*row) for row in connection.execute(CERTIFICATES)]
    bindings = [binding_from_row(*row) for row in connection.execute(BINDINGS)]
    permissions = {(service, principal): state for service, principal, state in connection.execute(PERMISSIONS)}
    return Security(
        {each.name: each for each in principals},
        {each.name: each for each in certificates},
        {each.name: each for each in bindings},
        permissions,
        load_master_key(connection),
    )


def certificate_from_row(
    number: int, name: str, owner: int, active: int, fingerprint: bytes, certificate: bytes, key: bytes | None
) -> Certificate:
    """Creates a certificate from the columns of a row."""
    return Certificate(number, name, owner, bool(active), fingerprint, certificate, key)


def binding_from_row(number: int, name: str, service: str, principal: int, anonymous: int) -> Binding:
    """Creates a binding from the columns of a row."""
    return Binding(number, name, service, principal, bool(anonymous))


def load_master_key(connection: Connection) -> MasterKey | None:
    """Reads the master key; None if there is none."""
    keys: list[tuple[Any, ...]] = connection.execute("SELECT by_password, by_service FROM ssb_master_key").fetchall()
    return MasterKey(*keys[0]) if keys else None


PRINCIPALS: Final = "SELECT principal_id, name FROM ssb_principals ORDER BY principal_id"
CERTIFICATES: Final = """
    SELECT certificate_id, name, principal_id, is_active_for_begin_dialog, fingerprint, certificate, private_key
    FROM ssb_certificates ORDER BY certificate_id"""
BINDINGS: Final = """
    SELECT remote_service_binding_id, name, remote_service_name, remote_principal_id, is_anonymous_on
    FROM ssb_remote_service_bindings ORDER BY remote_service_binding_id"""
PERMISSIONS: Final = "SELECT service_id, principal_id, state FROM ssb_send_permissions"
