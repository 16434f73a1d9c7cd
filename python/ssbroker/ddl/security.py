"""The grammar of the statements about users, keys, certificates, bindings and permissions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ssbroker.ddl import security_statements as statements
from ssbroker.ddl.cursor import Cursor
from ssbroker.ddl.pieces import named, on_or_off, owner, skip_rest
from ssbroker.ddl.security_statements import KeyFile, Owned, Permission
from ssbroker.ddl.statements import Skipped, Statement

PERMISSIONS: Final[tuple[Permission, ...]] = ("GRANT", "DENY", "REVOKE")
# Those that there are on a service, each by its words.
_ON_SERVICES: Final = (("ALTER",), ("CONTROL",), ("SEND",), ("TAKE", "OWNERSHIP"), ("VIEW", "DEFINITION"))
_LIST_MAX: Final = 32  # words: all permissions of a service, with the commas, and a few more
_OWNED: Final[dict[str, Owned]] = {"SERVICE": "service", "CERTIFICATE": "certificate"}


def is_permission_on_service(cursor: Cursor) -> bool:
    """Whether a GRANT, DENY or REVOKE that begins here is about a service."""
    keys = [cursor.ahead(count).key for count in range(1, _LIST_MAX)]
    ends = [keys.index(word) for word in ("ON", "TO", "FROM", ";") if word in keys]
    return bool(ends) and keys[min(ends) : min(ends) + 4] == ["ON", "SERVICE", ":", ":"]


def _create_user(cursor: Cursor) -> Statement:
    name = named(cursor)
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


def _drop_user(cursor: Cursor) -> Statement:
    if_exists = cursor.accept("IF", "EXISTS")
    return statements.DropUser(named(cursor), if_exists)


def _create_master_key(cursor: Cursor) -> Statement:
    cursor.expect("ENCRYPTION")
    return statements.CreateMasterKey(_password(cursor))


def _alter_master_key(cursor: Cursor) -> Statement:
    if cursor.key not in ("ADD", "DROP"):
        cursor.fail("ADD or DROP was expected")
    is_added = cursor.take().key == "ADD"
    cursor.expect("ENCRYPTION", "BY", "SERVICE", "MASTER", "KEY")
    return statements.AlterMasterKey(is_added)


def _open_master_key(cursor: Cursor) -> Statement:
    cursor.expect("DECRYPTION")
    return statements.OpenMasterKey(_password(cursor))


def _create_certificate(cursor: Cursor) -> Statement:
    name, belongs = named(cursor), owner(cursor)
    said: dict[str, Any] = {}
    if cursor.accept("FROM"):
        cursor.expect("FILE", "=")
        said["file"] = cursor.string()
        if cursor.accept("WITH"):
            said["key"] = _private_key(cursor, "DECRYPTION")
    else:
        cursor.expect("WITH")
        seen: set[str] = set()
        while True:
            key = cursor.once(("SUBJECT", "START_DATE", "EXPIRY_DATE"), seen)
            cursor.expect("=")
            said[key.lower()] = cursor.string()
            if not cursor.accept(","):
                break
        if "subject" not in said:
            cursor.fail("SUBJECT = '...' was expected")
    if cursor.accept("ACTIVE"):
        said["is_active"] = _active(cursor)
    return statements.CreateCertificate(name, belongs, **said)


def _alter_certificate(cursor: Cursor) -> Statement:
    name = named(cursor)
    if cursor.accept("REMOVE", "PRIVATE", "KEY"):
        return statements.AlterCertificate(name, removes_key=True)
    cursor.expect("WITH")
    if cursor.accept("ACTIVE"):
        return statements.AlterCertificate(name, is_active=_active(cursor))
    return statements.AlterCertificate(name, key=_private_key(cursor, "DECRYPTION"))


def _backup_certificate(cursor: Cursor) -> Statement:
    name = named(cursor)
    cursor.expect("TO", "FILE", "=")
    file = cursor.string()
    key = _private_key(cursor, "ENCRYPTION") if cursor.accept("WITH") else None
    return statements.BackupCertificate(name, file, key)


def _active(cursor: Cursor) -> bool:
    cursor.expect("FOR", "BEGIN_DIALOG")
    return on_or_off(cursor)


def _private_key(cursor: Cursor, password: str) -> KeyFile:
    """PRIVATE KEY (FILE = '...', ... BY PASSWORD = '...')."""
    cursor.expect("PRIVATE", "KEY", "(")
    said: dict[str, str] = {}
    seen: set[str] = set()
    while True:
        key = cursor.once(("FILE", password), seen)
        if key == "FILE":
            cursor.expect("=")
            said["file"] = cursor.string()
        else:
            said["password"] = _password(cursor)
        if not cursor.accept(","):
            break
    if "file" not in said:
        cursor.fail("FILE = '...' was expected")
    cursor.expect(")")
    return KeyFile(**said)


def _password(cursor: Cursor) -> str:
    cursor.expect("BY", "PASSWORD", "=")
    return cursor.string()


def _create_binding(cursor: Cursor) -> Statement:
    cursor.expect("BINDING")
    name = named(cursor)
    owner(cursor)
    cursor.expect("TO", "SERVICE")
    service = cursor.string()
    said = _binding(cursor)
    if "user" not in said:
        cursor.fail("USER = ... was expected")
    return statements.CreateBinding(name, service, **said)


def _alter_binding(cursor: Cursor) -> Statement:
    cursor.expect("BINDING")
    name = named(cursor)
    return statements.AlterBinding(name, **_binding(cursor))


def _binding(cursor: Cursor) -> dict[str, Any]:
    said: dict[str, Any] = {}
    seen: set[str] = set()
    cursor.expect("WITH")
    while True:
        key = cursor.once(("USER", "ANONYMOUS"), seen)
        if key == "USER":
            cursor.expect("=")
            said["user"] = cursor.name()
        else:
            said["anonymous"] = on_or_off(cursor)
        if not cursor.accept(","):
            return said


def _drop_binding(cursor: Cursor) -> Statement:
    cursor.expect("BINDING")
    return statements.DropBinding(named(cursor))


def _permission(permission: Permission) -> Callable[[Cursor], Statement]:
    def read(cursor: Cursor) -> Statement:
        cursor.index -= 1  # back to the first of the permissions, by which the statement was known
        listed = _listed(cursor)
        cursor.expect("ON", "SERVICE", ":", ":")
        service = named(cursor)
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
        meant = {"SEND", "CONTROL"} & set(listed)
        if not meant:
            return Skipped()
        ignored = ", ".join(each for each in listed if each not in meant)
        return statements.SetPermission(permission, service, tuple(users), "SEND" not in meant, ignored)

    return read


def _listed(cursor: Cursor) -> list[str]:
    listed: list[str] = []
    while True:
        found = next((words for words in _ON_SERVICES if cursor.accept(*words)), None)
        if found is None:
            cursor.fail(
                "a permission on a service was expected: SEND, CONTROL, ALTER, TAKE OWNERSHIP or VIEW DEFINITION"
            )
        listed.append(" ".join(found))
        if not cursor.accept(","):
            return listed


def _alter_authorization(cursor: Cursor) -> Statement:
    kind = _OWNED.get(cursor.ahead(1).key)
    if kind is None or not cursor.accept("ON", cursor.ahead(1).key, ":", ":"):
        skip_rest(cursor)
        return Skipped()
    name = named(cursor)
    cursor.expect("TO")
    return statements.SetOwner(kind, name, cursor.name())


GRAMMAR: Final[dict[str, Callable[[Cursor], Statement]]] = {
    "CREATE USER": _create_user,
    "DROP USER": _drop_user,
    "CREATE MASTER KEY": _create_master_key,
    "ALTER MASTER KEY": _alter_master_key,
    "OPEN MASTER KEY": _open_master_key,
    "CLOSE MASTER KEY": lambda _: Skipped(),
    "DROP MASTER KEY": lambda _: statements.DropMasterKey(),
    "CREATE CERTIFICATE": _create_certificate,
    "ALTER CERTIFICATE": _alter_certificate,
    "BACKUP CERTIFICATE": _backup_certificate,
    "DROP CERTIFICATE": lambda cursor: statements.DropCertificate(named(cursor)),
    "CREATE REMOTE SERVICE": _create_binding,
    "ALTER REMOTE SERVICE": _alter_binding,
    "DROP REMOTE SERVICE": _drop_binding,
    **{f"{verb} {words[0]}": _permission(verb) for verb in PERMISSIONS for words in _ON_SERVICES},
    "ALTER AUTHORIZATION": _alter_authorization,
}
"""What follows each verb and noun."""

VERBS: Final = frozenset(phrase.split(maxsplit=1)[0] for phrase in GRAMMAR)
"""The words with which these statements begin."""
