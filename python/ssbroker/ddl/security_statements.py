"""The statements about who is known in a database and what may be believed of them, as parsed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Permission = Literal["GRANT", "DENY", "REVOKE"]
Owned = Literal["service", "certificate"]


@dataclass(frozen=True, slots=True)
class CreateUser:
    """CREATE USER; `ignored` is what an instance has nothing for, such as logins."""

    name: str
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class DropUser:
    """DROP USER."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateMasterKey:
    """CREATE MASTER KEY."""

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterMasterKey:
    """ALTER MASTER KEY; whether the instance may open it by itself."""

    by_service: bool


@dataclass(frozen=True, slots=True)
class OpenMasterKey:
    """OPEN MASTER KEY."""

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropMasterKey:
    """DROP MASTER KEY."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The file of a private key, and the password that it is under."""

    file: str
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class CreateCertificate:
    """CREATE CERTIFICATE, from a file or made here; moments as they are written."""

    name: str
    owner: str | None = None
    file: str | None = None
    key: KeyFile | None = None
    subject: str | None = None
    start_date: str | None = None
    expiry_date: str | None = None
    is_active: bool = True


@dataclass(frozen=True, slots=True)
class AlterCertificate:
    """ALTER CERTIFICATE; None is not said."""

    name: str
    is_active: bool | None = None
    key: KeyFile | None = None
    removes_key: bool = False


@dataclass(frozen=True, slots=True)
class BackupCertificate:
    """BACKUP CERTIFICATE."""

    name: str
    file: str
    key: KeyFile | None = None


@dataclass(frozen=True, slots=True)
class DropCertificate:
    """DROP CERTIFICATE."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateBinding:
    """CREATE REMOTE SERVICE BINDING."""

    name: str
    service: str
    user: str
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class AlterBinding:
    """ALTER REMOTE SERVICE BINDING; None is not said."""

    name: str
    user: str | None = None
    anonymous: bool | None = None


@dataclass(frozen=True, slots=True)
class DropBinding:
    """DROP REMOTE SERVICE BINDING."""

    name: str


@dataclass(frozen=True, slots=True)
class SetPermission:
    """GRANT, DENY or REVOKE of SEND on a service; `by_control` of CONTROL, which holds SEND; `ignored` is what else is listed."""

    permission: Permission
    service: str
    users: tuple[str, ...]
    by_control: bool = False
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class SetOwner:
    """ALTER AUTHORIZATION ON SERVICE or ON CERTIFICATE."""

    kind: Owned
    name: str
    user: str


SecurityStatement = (
    CreateUser
    | DropUser
    | CreateMasterKey
    | AlterMasterKey
    | OpenMasterKey
    | DropMasterKey
    | CreateCertificate
    | AlterCertificate
    | BackupCertificate
    | DropCertificate
    | CreateBinding
    | AlterBinding
    | DropBinding
    | SetPermission
    | SetOwner
)
