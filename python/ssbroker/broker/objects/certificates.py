"""Master keys and certificates: what may be made, changed and dropped (facts 178 to 182)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ssbroker.broker.objects.credentials import Credentials
from ssbroker.broker.objects.names import check_object_name
from ssbroker.broker.objects.principals import principal_id
from ssbroker.broker.objects.refusals import existing, refusal, refuse_taken
from ssbroker.exceptions import InputError, OptionError
from ssbroker.security.dialog_certificate import DialogCertificate
from ssbroker.security.issuing import Validity, make_dialog_certificate
from ssbroker.security.key_files import plain_key
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import Value
from ssbroker.store.objects import Objects
from ssbroker.store.security import PUBLIC, MasterKey
from ssbroker.store.sqlite import Connection

YEAR: Final = timedelta(days=365)
"""How long a certificate holds that is made here, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Given:
    """A certificate as it is given.

    Attributes:
        certificate: In PEM or DER.
        private_key: In PEM or DER; None where that is another's.
        password: What the private key is encrypted with; None where it is not.
    """

    certificate: bytes
    private_key: bytes | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


def create_master_key(connection: Connection, objects: Objects, *, credentials: Credentials, password: str) -> None:
    """Makes the database's master key."""
    if objects.security.master_key is not None:
        raise refusal("the database has a master key already", 15578)
    _check_password(password)
    made = credentials.new_master_key(password)
    changes.set_master_key(connection, by_password=made.by_password, by_service=made.by_service)


def open_master_key(connection: Connection, objects: Objects, *, credentials: Credentials, password: str) -> None:
    """Has this instance open the master key by itself from now on, such as after the database came from another one."""
    _check_password(password)
    found = credentials.reopened(_master_key(objects), password)
    changes.set_master_key(connection, by_password=found.by_password, by_service=found.by_service)


def keep_master_key(connection: Connection, objects: Objects, *, credentials: Credentials, by_service: bool) -> None:
    """Says whether the instance may open the master key by itself."""
    found = _master_key(objects)
    if by_service and credentials.master_key(objects.security) is None:
        raise refusal("the master key is not open: OPEN MASTER KEY DECRYPTION BY PASSWORD = '...' first", 15581)
    if not by_service:
        changes.set_master_key(connection, by_password=found.by_password, by_service=None)


def drop_master_key(connection: Connection, objects: Objects) -> None:
    """Removes the master key, under which no private key may stand any more."""
    _master_key(objects)
    held = [one.name for one in objects.security.certificates.values() if one.private_key is not None]
    if held:
        raise refusal(f"the private key of certificate {held[0]!r} stands under the master key", 15580)
    changes.drop_master_key(connection)


def create_certificate(
    connection: Connection,
    objects: Objects,
    *,
    credentials: Credentials,
    name: str,
    given: Given,
    owner: str | None = None,
    active: bool = True,
) -> None:
    """Takes a certificate in, and its private key where it is given."""
    check_object_name(name)
    security = objects.security
    refuse_taken(security.certificates, name, kind="certificate", number=15232)
    belongs = _owner(objects, name, owner)
    try:
        key = None if given.private_key is None else plain_key(given.private_key, password=given.password)
        found = DialogCertificate(given.certificate, key)
    except InputError as error:
        raise refusal(f"certificate {name!r}: {error}", 15208) from None
    other = security.by_fingerprint.get(found.fingerprint)
    if other is not None:
        raise refusal(f"certificate {name!r} is here already, as {other.name!r}", 15232)
    sealed = None if key is None else credentials.sealed(security, key, fingerprint=found.fingerprint)
    values: dict[str, Value] = {
        "name": name,
        "principal_id": belongs,
        "is_active_for_begin_dialog": active,
        "fingerprint": found.fingerprint,
        "certificate": found.der,
        "private_key": sealed,
    }
    changes.create(connection, "ssb_certificates", values=values)


def made_certificate(subject: str, *, now: datetime, begins: datetime | None, ends: datetime | None) -> Given:
    """Makes a certificate that signs itself.

    Args:
        subject: Whose it is; `CN =` in front may be left out.
        now: The current moment.
        begins: From when on it holds; None is from now.
        ends: Until when; None is for a year.

    Returns:
        The certificate with its private key.

    Raises:
        BrokerError: There is no such certificate (15297).
    """
    name = subject.split("=", maxsplit=1)[1].strip() if subject.upper().startswith("CN") and "=" in subject else subject
    start = now if begins is None else begins
    try:
        end = start + YEAR if ends is None else ends
    except OverflowError:
        raise refusal(f"a year after it begins, at {start.isoformat()}, there is no moment", 15297) from None
    try:
        made = make_dialog_certificate(name, Validity(start, end))
    except OptionError as error:
        raise refusal(f"the certificate cannot be made: {error}", 15297) from None
    return Given(made.certificate, made.key)


def alter_certificate(
    connection: Connection,
    objects: Objects,
    *,
    credentials: Credentials,
    name: str,
    active: bool | None = None,
    private_key: bytes | None = None,
    password: str | None = None,
    removes_key: bool = False,
) -> None:
    """Changes whether dialogs begin with a certificate, and whether its private key is here."""
    certificate = existing(objects.security.certificates, name, kind="certificate")
    values: dict[str, Value] = {}
    if active is not None:
        values["is_active_for_begin_dialog"] = active
    if removes_key:
        values["private_key"] = None
    if private_key is not None:
        try:
            key = plain_key(private_key, password=password)
            DialogCertificate(certificate.certificate, key)
        except InputError as error:
            raise refusal(f"certificate {name!r}: {error}", 15208) from None
        values["private_key"] = credentials.sealed(objects.security, key, fingerprint=certificate.fingerprint)
    changes.alter(connection, "ssb_certificates", certificate.certificate_id, values)


def set_owner(connection: Connection, objects: Objects, *, name: str, user: str) -> None:
    """Gives a certificate to a user."""
    certificate = existing(objects.security.certificates, name, kind="certificate")
    values: dict[str, Value] = {"principal_id": _owner(objects, name, user)}
    changes.alter(connection, "ssb_certificates", certificate.certificate_id, values)


def drop_certificate(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a certificate; dialogs that it has begun go on with the keys that they have."""
    certificate = existing(objects.security.certificates, name, kind="certificate")
    changes.drop(connection, "ssb_certificates", certificate.certificate_id)


def _owner(objects: Objects, name: str, user: str | None) -> int:
    found = principal_id(objects, user)
    if found == PUBLIC:
        raise refusal(f"certificate {name!r} cannot belong to 'public'")
    return found


def _master_key(objects: Objects) -> MasterKey:
    found = objects.security.master_key
    if found is None:
        raise refusal("the database has no master key: CREATE MASTER KEY ENCRYPTION BY PASSWORD = '...'", 15151)
    return found


def _check_password(password: str) -> None:
    if not password:
        raise refusal("a master key needs a password, which may not be empty", 15118)
