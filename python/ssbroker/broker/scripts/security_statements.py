"""Runs the statements of scripts about users, permissions, certificates, keys and remote service bindings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from ssbroker._files import create_file
from ssbroker.broker import security_ddl
from ssbroker.broker.keys_at_rest import KeyEncryption
from ssbroker.broker.object_names import check_not_similar, existing, similar_name, similar_user
from ssbroker.broker.security_ddl import GivenCertificate
from ssbroker.ddl import refusal_texts, statements
from ssbroker.ddl.certificate_dates import parse_date
from ssbroker.ddl.script_notes import UNUSABLE_KEY, Remark, skipped_remark
from ssbroker.ddl.statements import SecurityStatement
from ssbroker.protocol.broker_errors import refusal
from ssbroker.security.certificates import KEY_PASSWORD_BYTES_MAX, certificate_to_pem, key_to_pem
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

_FILE_BYTES_MAX: Final = 64 * 1024

FileCreated: TypeAlias = Callable[[Path], None]


def change_security(
    connection: Connection,
    objects: Objects,
    statement: SecurityStatement,
    *,
    key_encryption: KeyEncryption,
    now: datetime,
    file_created: FileCreated,
) -> Remark | None:
    """Executes a statement; returns what was not done, if anything."""
    match statement:
        case statements.CreateUser(name, ignored):
            check_not_similar(objects.security.principals, name, kind="user", number=15023)
            security_ddl.create_user(connection, objects, name=name)
            return skipped_remark(ignored)
        case statements.DropUser(name):
            security_ddl.drop_user(connection, objects, name=similar_user(objects, name))
        case statements.CreateBinding(name, service, user, anonymous):
            check_not_similar(objects.security.bindings, name, kind="remote service binding")
            user = similar_user(objects, user)
            security_ddl.create_binding(connection, objects, name=name, service=service, user=user, anonymous=anonymous)
        case statements.AlterBinding(name, remote, is_anonymous):
            name = similar_name(objects.security.bindings, name)
            remote = None if remote is None else similar_user(objects, remote)
            security_ddl.alter_binding(connection, objects, name=name, user=remote, anonymous=is_anonymous)
        case statements.DropBinding(name):
            security_ddl.drop_binding(connection, objects, name=similar_name(objects.security.bindings, name))
        case statements.SetPermission():
            return _change_permission(connection, objects, statement)
        case statements.SetOwner(kind, name, user):
            set_owner = security_ddl.set_owner if kind == "service" else security_ddl.set_certificate_owner
            known = objects.services if kind == "service" else objects.security.certificates
            found = name if kind == "service" else similar_name(known, name)
            set_owner(connection, objects, name=found, user=similar_user(objects, user))
        case _ if isinstance(statement, statements.CertificateStatement):
            return _change_certificate(connection, objects, statement, key_encryption, now, file_created)
        case _:
            _change_master_key(connection, objects, statement, key_encryption)
    return None


def _change_permission(connection: Connection, objects: Objects, statement: statements.SetPermission) -> Remark | None:
    denied = security_ddl.set_permission(
        connection,
        objects,
        verb=statement.permission,
        service=statement.service,
        users=tuple(similar_user(objects, user) for user in statement.users),
        by_control=statement.by_control,
    )
    if denied:
        return Remark(
            "ignored", f"SEND remains denied to {', '.join(denied)}: CONTROL does not lift a denial; use REVOKE SEND"
        )
    return skipped_remark(statement.ignored)


def _change_master_key(
    connection: Connection,
    objects: Objects,
    statement: statements.MasterKeyStatement,
    key_encryption: KeyEncryption,
) -> None:
    match statement:
        case statements.CreateMasterKey(password):
            security_ddl.create_master_key(connection, objects, key_encryption=key_encryption, password=password)
        case statements.OpenMasterKey(password):
            security_ddl.open_master_key(connection, objects, key_encryption=key_encryption, password=password)
        case statements.AlterMasterKey(is_encrypted_by_service_key):
            security_ddl.keep_master_key(
                connection,
                objects,
                key_encryption=key_encryption,
                is_encrypted_by_service_key=is_encrypted_by_service_key,
            )
        case statements.DropMasterKey():
            security_ddl.drop_master_key(connection, objects)


def _change_certificate(
    connection: Connection,
    objects: Objects,
    statement: statements.CertificateStatement,
    key_encryption: KeyEncryption,
    now: datetime,
    file_created: FileCreated,
) -> Remark | None:
    match statement:
        case statements.CreateCertificate(unsupported_source=source) if source:
            return _not_supported(f"certificates from {source} are not supported; use FROM FILE or FROM BINARY")
        case statements.CreateCertificate(name, owner, is_active=active):
            check_not_similar(objects.security.certificates, name, kind="certificate", number=15232)
            security_ddl.create_certificate(
                connection,
                objects,
                key_encryption=key_encryption,
                name=name,
                given=_certificate_source(statement, now),
                owner=None if owner is None else similar_user(objects, owner),
                active=active,
            )
            return UNUSABLE_KEY if statement.has_unusable_key else None
        case statements.AlterCertificate(key=statements.GivenKey(file=None, binary=None)):
            return _not_supported(
                "the password of a private key cannot be changed, because the master key encrypts the private keys"
            )
        case statements.AlterCertificate(name, active_now, key, removes_key):
            is_unusable = key is not None and key.has_own_password
            security_ddl.alter_certificate(
                connection,
                objects,
                key_encryption=key_encryption,
                name=similar_name(objects.security.certificates, name),
                active=active_now,
                private_key=None if is_unusable else _private_key(key),
                password=None if key is None else key.password,
                removes_key=removes_key or is_unusable,
            )
            return UNUSABLE_KEY if is_unusable else None
        case statements.BackupCertificate():
            _back_up(objects, statement, key_encryption, file_created)
        case statements.DropCertificate(name):
            security_ddl.drop_certificate(connection, objects, name=similar_name(objects.security.certificates, name))
    return None


def _not_supported(why: str) -> Remark:
    return Remark("not_executed", f"not executed: {why}")


def _certificate_source(statement: statements.CreateCertificate, now: datetime) -> GivenCertificate:
    if statement.is_self_signed:
        made = security_ddl.self_signed_certificate(
            statement.subject or statement.name,
            now=now,
            begins=parse_date(statement.start_date),
            ends=parse_date(statement.expiry_date),
        )
        return GivenCertificate(made.certificate) if statement.has_unusable_key else made
    data = statement.binary if statement.file is None else _read_certificate_file(statement.file)
    key = None if statement.has_unusable_key else statement.key
    return GivenCertificate(data or b"", _private_key(key), None if key is None else key.password)


def _private_key(key: statements.GivenKey | None) -> bytes | None:
    """Returns the private key that a statement specifies; None if it specifies none."""
    if key is None:
        return None
    return key.binary if key.file is None else _read_certificate_file(key.file)


def _back_up(
    objects: Objects, statement: statements.BackupCertificate, key_encryption: KeyEncryption, file_created: FileCreated
) -> None:
    name = similar_name(objects.security.certificates, statement.name)
    certificate = existing(objects.security.certificates, name, kind="certificate")
    key = statement.key
    pem = certificate_to_pem(certificate.certificate)
    if key is not None:
        if not key.password:
            raise refusal("WITH PRIVATE KEY requires ENCRYPTION BY PASSWORD = '...' with a password that is not empty")
        if len(key.password.encode()) > KEY_PASSWORD_BYTES_MAX:
            raise refusal(
                f"the password of the private key is too long; expected at most {KEY_PASSWORD_BYTES_MAX} bytes in UTF-8",
                15118,
            )
        found = key_encryption.private_key(objects.security, certificate)
        if certificate.private_key is None:
            raise refusal(f"the certificate {certificate.name!r} has no private key; omit WITH PRIVATE KEY", 15581)
        if found is None:
            raise refusal(refusal_texts.MASTER_KEY_CLOSED, 15581)
        _write(key.file or "", key_to_pem(found, password=key.password), file_created)
    _write(statement.file, pem, file_created)


def _read_certificate_file(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: the name is not valid for a file
        raise refusal(f"{file}: cannot be read: {_os_error_text(error)}", 15208) from None
    if len(data) > _FILE_BYTES_MAX:
        raise refusal(
            f"{file}: is not a certificate or a private key, because it has more than {_FILE_BYTES_MAX} bytes", 15208
        )
    return data


def _write(file: str, data: bytes, file_created: FileCreated) -> None:
    try:
        create_file(Path(file), data, mode=0o600)
    except (OSError, ValueError) as error:
        raise refusal(f"{file}: cannot be written: {_os_error_text(error)}", 15240) from None
    file_created(Path(file))


def _os_error_text(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
