"""Who may connect: certificates under the names of principals, or an authority that vouches for them (P24, N8)."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from ssbroker import options
from ssbroker.exceptions import InputError, OptionError
from ssbroker.security.certificates import all_der, holds, may_sign

PROTOCOL: Final = "ssbroker/1"
"""What both sides name inside of TLS (ALPN), so that no other protocol's bytes are ever taken for ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Who this instance is, and whom it believes. All certificates are files in PEM.

    Attributes:
        certificate: The instance's own certificate, with those between it and its authority behind it, if there are any.
        key: Its private key, not encrypted.
        pinned: Certificates that may connect, by principal. A principal may have several, in one file or in many: those of a mirrored
            pair, or an old one and its successor.
        authority: The certificates of authorities, if any. Who shows a certificate that one of them has signed is the principal of its
            first DNS name.
        names: The principals that an authority may vouch for.

    Examples:
        >>> Trust(certificate=Path("shop.pem"), key=Path("shop.key"), authority=Path("authority.pem"))
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: names: an authority vouches only for names that are given; give at least one
        >>> Trust(certificate=Path("shop.pem"), key=Path("shop.key"))
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: nobody could connect: give pinned certificates, or an authority and names
    """

    certificate: Path
    key: Path = field(repr=False)
    pinned: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    authority: Path | None = None
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        options.texts(self.names, name="names")
        given: dict[str, object] = {"certificate": self.certificate, "key": self.key}
        if self.authority is not None:
            given["authority"] = self.authority
        for principal, files in self.pinned.items():
            given |= {f"pinned: {principal}": file for file in files}
        for name, file in given.items():
            if not isinstance(file, Path):
                raise OptionError(f"{name}: expected a pathlib.Path; got {type(file).__name__}")
        if self.authority is not None and not self.names:
            raise OptionError("names: an authority vouches only for names that are given; give at least one")
        if self.authority is None and self.names:
            raise OptionError("names: they are those that an authority may vouch for, and none is given")
        if self.authority is None and not any(self.pinned.values()):
            raise OptionError("nobody could connect: give pinned certificates, or an authority and names")
        if not all(self.pinned):
            raise OptionError("pinned: the name of a principal is empty")


class Principals:
    """The principals of certificates.

    Args:
        trust: Whom the instance believes.

    Raises:
        InputError: A file holds no certificate, or cannot be read.
        OptionError: A certificate stands under two principals, or could vouch for others without being asked.
    """

    __slots__ = ("_names", "_pins", "certificates")

    def __init__(self, trust: Trust) -> None:
        self._names: Final = frozenset(trust.names)
        self._pins: Final[dict[bytes, str]] = {}
        self.certificates: Final[list[tuple[Path, bytes]]] = []
        for principal, files in trust.pinned.items():
            for file in files:
                self._pin(principal, file, has_authority=trust.authority is not None)

    def _pin(self, principal: str, file: Path, *, has_authority: bool) -> None:
        try:
            certificates = all_der(file.read_bytes())
            is_signer = any(may_sign(each) for each in certificates)
        except OSError as error:
            raise InputError(f"{file}: the certificate of {principal} cannot be read: {error.strerror}") from error
        except InputError as error:
            raise InputError(f"{file}: {error}") from error
        if is_signer and has_authority:
            raise OptionError(
                f"{file}: the pinned certificate of {principal} may sign others, so it cannot stand beside an authority;"
                " make it without CA:TRUE, or leave the authority out"
            )
        for binary in certificates:
            known = self._pins.setdefault(hashlib.sha256(binary).digest(), principal)
            if known != principal:
                raise OptionError(f"{file}: the certificate is pinned as that of {known} and of {principal}")
        self.certificates.extend((file, binary) for binary in certificates)

    def principal_of(self, connection: ssl.SSLObject) -> str | None:
        """Who the far side has proven to be.

        Args:
            connection: TLS as agreed; it has verified the far side's certificate.

        Returns:
            The principal, or None where it is none that may connect.
        """
        binary = connection.getpeercert(binary_form=True)
        if binary is None:
            return None
        pinned = self._pins.get(hashlib.sha256(binary).digest())
        if pinned is not None or not self._names:
            return pinned
        name = name_of(connection)
        return name if name in self._names else None


def name_of(connection: ssl.SSLObject) -> str | None:
    """The first DNS name of the far side's certificate.

    Args:
        connection: TLS as agreed; it has verified the certificate.

    Returns:
        The name; None where there is none, or the names are not to be read.
    """
    try:
        alternatives = (connection.getpeercert() or {}).get("subjectAltName", ())
    except ValueError:  # such as bytes that are no characters
        return None
    return next((str(pair[1]) for pair in alternatives if pair[0] == "DNS"), None)


@dataclass(frozen=True, slots=True)
class Contexts:
    """What TLS is agreed with, at each end.

    Attributes:
        accept: For connections that others have dialled.
        dial: For those that this instance dials.
        principals: Whose certificates are whose.
        begins: From when on the instance's own certificate is valid.
        ends: Until when.
    """

    accept: ssl.SSLContext
    dial: ssl.SSLContext
    principals: Principals
    begins: datetime
    ends: datetime

    @classmethod
    def of(cls, trust: Trust) -> Contexts:
        """Reads the files.

        Args:
            trust: Where they are.

        Returns:
            What TLS is agreed with: 1.3 alone, certificates on both sides, no tickets that would stand for them later.

        Raises:
            InputError: A file cannot be read, or is not what it should be.
            OptionError: They do not fit each other.
        """
        principals = Principals(trust)
        own = _bytes_of(trust.certificate)
        _bytes_of(trust.key)  # OpenSSL does not say which of the two it cannot read
        accept, dial = (
            _context(protocol, trust, principals) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        try:
            begins, ends = holds(own)
        except InputError as error:  # of what OpenSSL took
            raise InputError(f"{trust.certificate}: {error}") from error
        return cls(accept, dial, principals, begins, ends)


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error


def _context(protocol: int, trust: Trust, principals: Principals) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A name in the certificate is a principal, not a host: who may answer is said by `names` and `pinned` (fact 174).
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols([PROTOCOL])
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    _load_own(context, trust)
    for file, certificate in principals.certificates:
        try:
            context.load_verify_locations(cadata=certificate)
        except ssl.SSLError as error:  # such as names that are no characters, which the other library does not look at
            raise InputError(f"{file}: expected a certificate that TLS can use; OpenSSL cannot read it") from error
    if trust.authority is not None:
        try:
            context.load_verify_locations(cafile=trust.authority)
        except ssl.SSLError as error:
            raise InputError(f"{trust.authority}: expected certificates of an authority in PEM") from error
        except OSError as error:
            raise InputError(f"{trust.authority}: cannot be read: {error.strerror}") from error
    return context


def _load_own(context: ssl.SSLContext, trust: Trust) -> None:
    def refuse() -> str:
        raise OptionError(
            f"{trust.key}: the private key is encrypted; give one that is not, readable by its user alone"
        )

    try:
        context.load_cert_chain(trust.certificate, trust.key, password=refuse)
    except ssl.SSLError as error:
        raise InputError(
            f"{trust.certificate}, {trust.key}: expected a certificate in PEM and its private key"
        ) from error
