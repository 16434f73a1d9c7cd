"""Parses statements about security: users, keys, certificates, remote service bindings and permissions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from ssbroker.ddl import statements
from ssbroker.ddl.statements import GivenKey, OwnedKind, Permission, Skipped, Statement
from ssbroker.ddl.token_cursor import TokenCursor, drop_name, on_or_off, optional_owner, skip_rest, subject_name

PERMISSIONS: Final[tuple[Permission, ...]] = ("GRANT", "DENY", "REVOKE")
# The permissions on a service.
_ON_SERVICES: Final = (("ALTER",), ("CONTROL",), ("SEND",), ("TAKE", "OWNERSHIP"), ("VIEW", "DEFINITION"))
_PERMISSION_WORDS_MAX: Final = 32  # tokens: all permissions on a service with commas, and a few more
_OWNED: Final[dict[str, OwnedKind]] = {"SERVICE": "service", "CERTIFICATE": "certificate"}


def is_permission_on_service(cursor: TokenCursor) -> bool:
    """Returns whether the GRANT, DENY or REVOKE at the cursor is about a service."""
    keys = [cursor.ahead(count).key for count in range(1, _PERMISSION_WORDS_MAX)]
    ends = [keys.index(word) for word in ("ON", "TO", "FROM", ";") if word in keys]
    return bool(ends) and keys[min(ends) : min(ends) + 4] == ["ON", "SERVICE", ":", ":"]


def _create_user(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    if cursor.accept("WITHOUT", "LOGIN"):
        ignored = ""
    elif cursor.key in ("FOR", "FROM"):
        cursor.take()
        ignored = f"FOR {cursor.take().text}"
        cursor.name()
    else:
        ignored = ""
    if cursor.accept("WITH"):
        ignored = ignored or f"WITH {cursor.key}"
        skip_rest(cursor)
    return statements.CreateUser(name, ignored)


def _drop_user(cursor: TokenCursor) -> Statement:
    if_exists = cursor.accept("IF", "EXISTS")
    return statements.DropUser(subject_name(cursor), if_exists)


def _create_master_key(cursor: TokenCursor) -> Statement:
    cursor.expect("ENCRYPTION")
    return statements.CreateMasterKey(_password(cursor))


def _alter_master_key(cursor: TokenCursor) -> Statement:
    if cursor.key not in ("ADD", "DROP"):
        cursor.fail("expected ADD or DROP")
    is_added = cursor.take().key == "ADD"
    cursor.expect("ENCRYPTION", "BY", "SERVICE", "MASTER", "KEY")
    return statements.AlterMasterKey(is_added)


def _open_master_key(cursor: TokenCursor) -> Statement:
    cursor.expect("DECRYPTION")
    return statements.OpenMasterKey(_password(cursor))


def _create_certificate(cursor: TokenCursor) -> Statement:
    name, owner_name = subject_name(cursor), optional_owner(cursor)
    options: dict[str, Any] = {}
    if cursor.accept("FROM"):
        options.update(_certificate_source(cursor))
    else:
        if cursor.accept("ENCRYPTION"):
            _password(cursor)
            options["has_own_password"] = True
        cursor.expect("WITH")
        seen: set[str] = set()
        while True:
            key = cursor.unique_option(("SUBJECT", "START_DATE", "EXPIRY_DATE"), seen)
            cursor.expect("=")
            options[key.lower()] = cursor.string()
            if not cursor.accept(","):
                break
        if "subject" not in options:
            cursor.fail("expected SUBJECT = '...'")
    if cursor.accept("ACTIVE"):
        options["is_active"] = _active_for_begin_dialog(cursor)
    return statements.CreateCertificate(name, owner_name, **options)


def _certificate_source(cursor: TokenCursor) -> dict[str, Any]:
    """Parses the source after FROM in CREATE CERTIFICATE."""
    if cursor.accept("ASSEMBLY"):
        cursor.name()
        return {"unsupported_source": "an assembly"}
    options: dict[str, Any] = {}
    if cursor.accept("BINARY", "="):
        options["binary"] = _binary(cursor)
    else:
        options["unsupported_source"] = "an executable file" if cursor.accept("EXECUTABLE") else ""
        cursor.expect("FILE", "=")
        options["file"] = cursor.string()
    if cursor.accept("WITH"):
        if cursor.accept("FORMAT", "="):
            cursor.string()
            cursor.expect(",")
            options["unsupported_source"] = "a PFX file"
        options["key"] = _private_key(cursor, "DECRYPTION")
    return options


def _binary(cursor: TokenCursor) -> bytes:
    """Parses a binary constant."""
    text = cursor.token.text
    if cursor.token.kind != "word" or _BINARY.fullmatch(text) is None:
        cursor.fail("expected a binary constant, 0x...")
    cursor.take()
    digits = text[2:]
    return bytes.fromhex(f"0{digits}" if len(digits) % 2 else digits)


_BINARY: Final = re.compile(r"0[xX][0-9a-fA-F]*")


def _alter_certificate(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    if cursor.accept("REMOVE", "PRIVATE", "KEY"):
        return statements.AlterCertificate(name, removes_key=True)
    cursor.expect("WITH")
    if cursor.accept("ACTIVE"):
        return statements.AlterCertificate(name, is_active=_active_for_begin_dialog(cursor))
    return statements.AlterCertificate(name, key=_private_key(cursor, "DECRYPTION", needs_source=False))


def _backup_certificate(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    cursor.expect("TO", "FILE", "=")
    file = cursor.string()
    key = _private_key(cursor, "ENCRYPTION") if cursor.accept("WITH") else None
    return statements.BackupCertificate(name, file, key)


def _active_for_begin_dialog(cursor: TokenCursor) -> bool:
    cursor.expect("FOR", "BEGIN_DIALOG")
    return on_or_off(cursor)


def _private_key(cursor: TokenCursor, password: str, *, needs_source: bool = True) -> GivenKey:
    """Parses PRIVATE KEY (FILE = '...', ... BY PASSWORD = '...'); `password` is the keyword for the password of the file or constant."""
    cursor.expect("PRIVATE", "KEY", "(")
    options: dict[str, Any] = {}
    seen: set[str] = set()
    while True:
        key = cursor.unique_option(("FILE", "BINARY", "DECRYPTION", "ENCRYPTION"), seen)
        if key in ("FILE", "BINARY"):
            cursor.expect("=")
            options[key.lower()] = cursor.string() if key == "FILE" else _binary(cursor)
        elif key == password:
            options["password"] = _password(cursor)
        else:
            _password(cursor)
            options["has_own_password"] = key == "ENCRYPTION"
        if not cursor.accept(","):
            break
    if needs_source and not seen & {"FILE", "BINARY"}:
        cursor.fail("expected FILE = '...'")
    cursor.expect(")")
    return GivenKey(**options)


def _password(cursor: TokenCursor) -> str:
    cursor.expect("BY", "PASSWORD", "=")
    return cursor.string()


def _create_binding(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    optional_owner(cursor)
    cursor.expect("TO", "SERVICE")
    service = cursor.string()
    options = _binding_options(cursor)
    if "user" not in options:
        cursor.fail("expected USER = ...")
    return statements.CreateBinding(name, service, **options)


def _alter_binding(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    return statements.AlterBinding(name, **_binding_options(cursor))


def _binding_options(cursor: TokenCursor) -> dict[str, Any]:
    options: dict[str, Any] = {}
    seen: set[str] = set()
    cursor.expect("WITH")
    while True:
        key = cursor.unique_option(("USER", "ANONYMOUS"), seen)
        if key == "USER":
            cursor.expect("=")
            options["user"] = cursor.name()
        else:
            options["anonymous"] = on_or_off(cursor)
        if not cursor.accept(","):
            return options


def _incomplete_binding(cursor: TokenCursor) -> Statement:
    cursor.fail("expected BINDING")


def _permission(permission: Permission) -> Callable[[TokenCursor], Statement]:
    def read(cursor: TokenCursor) -> Statement:
        cursor.index -= 1  # back to the first permission, which is part of the verb
        permissions = _permissions(cursor)
        cursor.expect("ON", "SERVICE", ":", ":")
        service = subject_name(cursor)
        if permission != "REVOKE" or not cursor.accept("FROM"):
            cursor.expect("TO")
        users = [cursor.name()]
        while cursor.accept(","):
            users.append(cursor.name())
        if permission == "GRANT":
            cursor.accept("WITH", "GRANT", "OPTION")
        else:
            cursor.accept("CASCADE")
        if cursor.accept("AS"):
            cursor.name()
        relevant = {"SEND", "CONTROL"} & set(permissions)
        if not relevant:
            return Skipped(f"{permission} ON SERVICE")
        ignored = ", ".join(each for each in permissions if each not in relevant)
        return statements.SetPermission(permission, service, tuple(users), "SEND" not in relevant, ignored)

    return read


def _permissions(cursor: TokenCursor) -> list[str]:
    permissions: list[str] = []
    while True:
        found = next((words for words in _ON_SERVICES if cursor.accept(*words)), None)
        if found is None:
            cursor.fail("expected a permission on a service: SEND, CONTROL, ALTER, TAKE OWNERSHIP or VIEW DEFINITION")
        permissions.append(" ".join(found))
        if not cursor.accept(","):
            return permissions


def _alter_authorization(cursor: TokenCursor) -> Statement:
    kind = _OWNED.get(cursor.ahead(1).key)
    if kind is None or not cursor.accept("ON", cursor.ahead(1).key, ":", ":"):
        skip_rest(cursor)
        return Skipped("ALTER AUTHORIZATION")
    name = subject_name(cursor)
    cursor.expect("TO")
    return statements.SetOwner(kind, name, cursor.name())


SECURITY_GRAMMAR: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "CREATE USER": _create_user,
    "DROP USER": _drop_user,
    "CREATE MASTER KEY": _create_master_key,
    "ALTER MASTER KEY": _alter_master_key,
    "OPEN MASTER KEY": _open_master_key,
    "CLOSE MASTER KEY": lambda _: Skipped("CLOSE MASTER KEY"),
    "DROP MASTER KEY": lambda _: statements.DropMasterKey(),
    "CREATE CERTIFICATE": _create_certificate,
    "ALTER CERTIFICATE": _alter_certificate,
    "BACKUP CERTIFICATE": _backup_certificate,
    "DROP CERTIFICATE": lambda cursor: statements.DropCertificate(drop_name(cursor)),
    "CREATE REMOTE SERVICE": _incomplete_binding,
    "ALTER REMOTE SERVICE": _incomplete_binding,
    "DROP REMOTE SERVICE": _incomplete_binding,
    "CREATE REMOTE SERVICE BINDING": _create_binding,
    "ALTER REMOTE SERVICE BINDING": _alter_binding,
    "DROP REMOTE SERVICE BINDING": lambda cursor: statements.DropBinding(drop_name(cursor)),
    **{f"{verb} {words[0]}": _permission(verb) for verb in PERMISSIONS for words in _ON_SERVICES},
    "ALTER AUTHORIZATION": _alter_authorization,
}
"""The parser of each statement about security, by verb and noun."""

SECURITY_VERBS: Final = frozenset(phrase.split(maxsplit=1)[0] for phrase in SECURITY_GRAMMAR)
"""The first words of statements about security."""
