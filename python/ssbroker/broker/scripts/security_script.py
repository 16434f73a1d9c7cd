"""What the statements about users, keys, certificates, bindings and permissions do to a database."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from ssbroker import moment
from ssbroker.broker.objects import certificates, principals
from ssbroker.broker.objects.certificates import Given
from ssbroker.broker.objects.credentials import Credentials
from ssbroker.broker.objects.refusals import existing, refusal
from ssbroker.ddl import security_statements as statements
from ssbroker.ddl.security_statements import SecurityStatement
from ssbroker.security.key_files import KEY_PASSWORD_BYTES_MAX, certificate_as_pem, key_as_pem
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

_FILE_MOST: Final = 64 * 1024
# What SQL Server reads beside ISO 8601: 20261121, and 11/21/2026.
_DAYS: Final = (
    re.compile(r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)(?=\Z|[T ])", re.ASCII),
    re.compile(r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})(?=\Z|[T ])", re.ASCII),
)


Wrote: TypeAlias = Callable[[Path], None]


def change(
    connection: Connection,
    objects: Objects,
    statement: SecurityStatement,
    *,
    credentials: Credentials,
    now: datetime,
    wrote: Wrote,
) -> str | None:
    """Does what a statement says.

    Args:
        connection: The database, locked.
        objects: What stands in it.
        statement: The statement.
        credentials: What opens the instance's keys.
        now: The current moment.
        wrote: Is told of each file that was written, which is to go again if the change is undone.

    Returns:
        What was left out of account, for a warning.

    Raises:
        BrokerError: The statement is refused.
    """
    match statement:
        case statements.CreateUser(name, ignored):
            principals.create_user(connection, objects, name=name)
            return f"skipped {ignored}" if ignored else None
        case statements.DropUser(name, if_exists):
            if not if_exists or name in objects.security.principals:
                principals.drop_user(connection, objects, name=name)
        case statements.CreateBinding(name, service, user, anonymous):
            principals.create_binding(connection, objects, name=name, service=service, user=user, anonymous=anonymous)
        case statements.AlterBinding(name, changed, said):
            principals.alter_binding(connection, objects, name=name, user=changed, anonymous=said)
        case statements.DropBinding(name):
            principals.drop_binding(connection, objects, name=name)
        case statements.SetPermission():
            return _permit(connection, objects, statement)
        case statements.SetOwner(kind, name, user):
            (principals if kind == "service" else certificates).set_owner(connection, objects, name=name, user=user)
        case _:
            _change_keys(connection, objects, statement, credentials, now, wrote)
    return None


def _permit(connection: Connection, objects: Objects, said: statements.SetPermission) -> str | None:
    denied = principals.set_permission(
        connection, objects, verb=said.permission, service=said.service, users=said.users, by_control=said.by_control
    )
    if denied:
        return f"SEND stays denied to {', '.join(denied)}: CONTROL lifts no denial, REVOKE SEND does"
    return f"skipped {said.ignored}" if said.ignored else None


def _change_keys(
    connection: Connection,
    objects: Objects,
    statement: statements.CreateMasterKey
    | statements.AlterMasterKey
    | statements.OpenMasterKey
    | statements.DropMasterKey
    | statements.CreateCertificate
    | statements.AlterCertificate
    | statements.BackupCertificate
    | statements.DropCertificate,
    credentials: Credentials,
    now: datetime,
    wrote: Wrote,
) -> None:
    match statement:
        case statements.CreateMasterKey(password):
            certificates.create_master_key(connection, objects, credentials=credentials, password=password)
        case statements.OpenMasterKey(password):
            certificates.open_master_key(connection, objects, credentials=credentials, password=password)
        case statements.AlterMasterKey(by_service):
            certificates.keep_master_key(connection, objects, credentials=credentials, by_service=by_service)
        case statements.DropMasterKey():
            certificates.drop_master_key(connection, objects)
        case statements.CreateCertificate(name, owner, is_active=active):
            certificates.create_certificate(
                connection,
                objects,
                credentials=credentials,
                name=name,
                given=_given(statement, now),
                owner=owner,
                active=active,
            )
        case statements.AlterCertificate(name, active_now, key, removes_key):
            certificates.alter_certificate(
                connection,
                objects,
                credentials=credentials,
                name=name,
                active=active_now,
                private_key=None if key is None else _read(key.file),
                password=None if key is None else key.password,
                removes_key=removes_key,
            )
        case statements.BackupCertificate():
            _back_up(objects, statement, credentials, wrote)
        case statements.DropCertificate(name):
            certificates.drop_certificate(connection, objects, name=name)


def _given(statement: statements.CreateCertificate, now: datetime) -> Given:
    if statement.file is None:
        return certificates.made_certificate(
            statement.subject or statement.name,
            now=now,
            begins=_moment(statement.start_date),
            ends=_moment(statement.expiry_date),
        )
    key = statement.key
    return Given(_read(statement.file), None if key is None else _read(key.file), None if key is None else key.password)


def _back_up(objects: Objects, statement: statements.BackupCertificate, credentials: Credentials, wrote: Wrote) -> None:
    certificate = existing(objects.security.certificates, statement.name, kind="certificate")
    key = statement.key
    pem = certificate_as_pem(certificate.certificate)
    if key is not None:
        if not key.password:
            raise refusal("the private key needs ENCRYPTION BY PASSWORD = '...'")
        if len(key.password.encode()) > KEY_PASSWORD_BYTES_MAX:
            raise refusal(
                f"the password is too long: in UTF-8 one of a private key has at most {KEY_PASSWORD_BYTES_MAX} bytes",
                15118,
            )
        found = credentials.private_key(objects.security, certificate)
        if found is None:
            raise refusal(f"the private key of certificate {statement.name!r} is not here, or not open", 15581)
        _write(key.file, key_as_pem(found, password=key.password), wrote)
    _write(statement.file, pem, wrote)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    found = next(filter(None, (days.match(text) for days in _DAYS)), None)
    day = "" if found is None else f"{found['year']}-{found['month']:0>2}-{found['day']:0>2}"
    try:
        return moment.parse(text if found is None else day + text[found.end() :])
    except ValueError:
        raise refusal(
            f"{text!r:.80} is no moment: write it as in '2026-11-21', '20261121' or '2026-11-21 08:00:00'", 241
        ) from None


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_FILE_MOST + 1)
    except (OSError, ValueError) as error:  # the latter where no file can have the name
        raise refusal(f"{file}: cannot be read: {_reason(error)}", 15208) from None
    if len(data) > _FILE_MOST:
        raise refusal(f"{file}: is longer than a certificate or a private key", 15208)
    return data


def _write(file: str, data: bytes, wrote: Wrote) -> None:
    """Writes a file that was not there, whole or not at all."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(data)
        except OSError:
            Path(file).unlink()
            raise
    except (OSError, ValueError) as error:
        raise refusal(f"{file}: cannot be written: {_reason(error)}", 15240) from None
    wrote(Path(file))


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
