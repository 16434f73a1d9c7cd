"""TLS without I/O, trusted peers, and certificates that are reloaded when their files change."""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from ssbroker._arguments import string_list
from ssbroker.exceptions import InputError, OptionError, PeerError
from ssbroker.protocol.wire.frames import Data
from ssbroker.security.certificates import can_sign, read_all_der, validity_period

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
        string_list(self.names, name="names")
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
            certificates = read_all_der(file.read_bytes())
            is_signer = any(can_sign(each) for each in certificates)
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
class TlsContexts:
    """What TLS is agreed with, at each end.

    Attributes:
        accept: For connections that others have dialled.
        dial: For those that this instance dials.
        principals: Whose certificates are whose.
        valid_from: From when on the instance's own certificate is valid.
        valid_until: Until when.
    """

    accept: ssl.SSLContext
    dial: ssl.SSLContext
    principals: Principals
    valid_from: datetime
    valid_until: datetime

    @classmethod
    def load(cls, trust: Trust) -> TlsContexts:
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
        own = _read(trust.certificate)
        _read(trust.key)  # OpenSSL does not say which of the two it cannot read
        accept, dial = (
            _context(protocol, trust, principals) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        try:
            valid_from, valid_until = validity_period(own)
        except InputError as error:  # of what OpenSSL took
            raise InputError(f"{trust.certificate}: {error}") from error
        return cls(accept, dial, principals, valid_from, valid_until)


def _read(file: Path) -> bytes:
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
        except (
            ssl.SSLError
        ) as error:  # such as names that are no characters, which the other library does not reload_if_changed at
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


_HANDSHAKE: Final = 22
_VERSION: Final = 3
_HEADER_BYTES: Final = 5
_RECORD_BYTES_MAX: Final = 16 << 10
_READ_BYTES: Final = 64 << 10
_CERTIFICATE_ALERTS: Final = frozenset(
    {
        "bad certificate",
        "certificate expired",
        "certificate revoked",
        "certificate unknown",
        "unknown ca",
        "unsupported certificate",
    }
)
"""What alerts of TLS say to whom has shown a certificate."""


class Channel(Protocol):
    """Both directions of a connection, as what goes over the wire and as what it means."""

    @property
    def is_open(self) -> bool:
        """Whether it is known who the far side is, so that it may be spoken to."""

    @property
    def principal(self) -> str | None:
        """Who the far side has proven to be."""

    @property
    def method(self) -> str | None:
        """How it has proven that, for people."""

    @property
    def unsent_bytes(self) -> int:
        """What waits to be given to the socket."""

    def received(self, data: Data) -> Data:
        """Takes what the socket brought.

        Args:
            data: The bytes.

        Returns:
            What they mean.

        Raises:
            PeerError: They mean nothing, or the far side is nobody who may connect.
        """

    def seal(self, data: Data) -> None:
        """Takes what is to be said; only where it is open.

        Args:
            data: The bytes.

        Raises:
            PeerError: The far side has ended it.
        """

    def data_to_send(self) -> bytes:
        """What the socket is to be given."""

    def close(self) -> None:
        """Says that nothing more comes."""


class UnencryptedChannel:
    """Bytes as they are, from anybody (`allow_unencrypted`)."""

    __slots__ = ("_outgoing",)

    is_open: Final = True
    principal: Final = None
    method: Final = None

    def __init__(self) -> None:
        self._outgoing: Final[list[Data]] = []

    @property
    def unsent_bytes(self) -> int:
        """See `Channel`."""
        return sum(map(len, self._outgoing))

    def received(self, data: Data) -> Data:
        """See `Channel`."""
        return data

    def seal(self, data: Data) -> None:
        """See `Channel`."""
        self._outgoing.append(data)

    def data_to_send(self) -> bytes:
        """See `Channel`."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def close(self) -> None:
        """See `Channel`."""


class TlsChannel:
    """TLS 1.3 with certificates on both sides (N8).

    An accepted connection costs no more than the bytes that it has sent until its first record is whole: only then TLS is set up, which
    takes more memory than a slow and unproven far side is worth (N11).

    Args:
        contexts: What it is agreed with.
        is_accept: Whether the far side dialled.
    """

    __slots__ = ("_contexts", "_first_record", "_incoming", "_is_accept", "_outgoing", "_tls", "principal")

    method: Final = "CERTIFICATE"

    def __init__(self, contexts: TlsContexts, *, is_accept: bool) -> None:
        self._contexts: Final = contexts
        self._is_accept: Final = is_accept
        self._first_record: bytes | None = b"" if is_accept else None
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self.principal: str | None = None
        if not is_accept:
            self._handshake(self._tls_object())

    @property
    def is_open(self) -> bool:
        """See `Channel`."""
        return self.principal is not None

    @property
    def unsent_bytes(self) -> int:
        """See `Channel`."""
        return self._outgoing.pending

    def received(self, data: Data) -> bytes:
        """See `Channel`."""
        if self._first_record is not None:
            self._first_record += data
            if not _is_complete_record(self._first_record):
                return b""
            data, self._first_record = self._first_record, None
        tls = self._tls_object()
        self._incoming.write(data)
        if not self.is_open and not self._handshake(tls):
            return b""
        pieces = []
        try:
            while piece := tls.read(_READ_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise PeerError(_describe(error)) from error
        return b"".join(pieces)

    def seal(self, data: Data) -> None:
        """See `Channel`."""
        try:
            self._tls_object().write(data)
        except ssl.SSLError as error:
            raise PeerError(_describe(error)) from error

    def data_to_send(self) -> bytes:
        """See `Channel`."""
        return self._outgoing.read()

    def close(self) -> None:
        """See `Channel`."""
        if self._tls is None or not self.is_open:
            return
        with suppress(ssl.SSLError):  # the far side's own farewell is not waited for
            self._tls.unwrap()

    def _tls_object(self) -> ssl.SSLObject:
        if self._tls is None:
            context = self._contexts.accept if self._is_accept else self._contexts.dial
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=self._is_accept)
        return self._tls

    def _handshake(self, tls: ssl.SSLObject) -> bool:
        """Goes on agreeing; whether it is done."""
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise PeerError(_describe(error)) from error
        if tls.selected_alpn_protocol() != PROTOCOL:
            raise PeerError(f"the far side speaks TLS, but not {PROTOCOL}")
        self.principal = self._contexts.principals.principal_of(tls)
        if self.principal is None:
            name = name_of(tls)
            raise PeerError(
                "the far side's certificate is valid, but has no name of DNS, and is not pinned"
                if name is None
                else f"the far side's certificate is valid, but {name} is not among those who may connect"
            )
        return True


def _is_complete_record(data: bytes) -> bool:
    """Whether the first record of TLS is there; a PeerError where it is none."""
    if data[0] != _HANDSHAKE or (len(data) > 1 and data[1] != _VERSION):
        raise PeerError("the far side does not speak TLS, which is asked for here")
    if len(data) < _HEADER_BYTES:
        return False
    length = int.from_bytes(data[3:_HEADER_BYTES])
    if length > _RECORD_BYTES_MAX:
        raise PeerError(f"a record of TLS has at most {_RECORD_BYTES_MAX} bytes; the first one says {length}")
    return len(data) >= _HEADER_BYTES + length


def _describe(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the far side's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
        return "the far side ended TLS"
    if error.reason == "WRONG_VERSION_NUMBER":  # what OpenSSL says of bytes that are no TLS
        return "TLS: the far side does not speak it"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    alert = reason.partition(" alert ")[2]
    if alert in _CERTIFICATE_ALERTS:
        return f"the far side does not believe the certificate of this instance: {alert}"
    return f"TLS: {reason}"


LOGGER: Final = logging.getLogger("ssbroker.broker")
_FileStates: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class TlsCredentials:
    """What new connections agree on TLS with. Those that are there go on with what they began with.

    Args:
        trust: Where the files are.

    Attributes:
        contexts: What was read last; replaced as a whole.

    Raises:
        InputError: A file cannot be read, or is not what it should be.
        OptionError: They do not fit each other.
    """

    def __init__(self, trust: Trust) -> None:
        self._files: Final = [trust.certificate, trust.key, *chain.from_iterable(trust.pinned.values())]
        if trust.authority is not None:
            self._files.append(trust.authority)
        self._trust: Final = trust
        self._read: _FileStates = self._file_states()
        self._seen: _FileStates = self._read
        self._failed: tuple[_FileStates, str] | None = None
        self._reported_problem: str | None = None
        self.contexts: TlsContexts = TlsContexts.load(trust)
        self._log_validity_problem()

    def reload(self) -> None:
        """Reads the files again, now. Where one of them is broken, what was read before goes on to be used.

        Raises:
            InputError: A file cannot be read, or is not what it should be.
            OptionError: They do not fit each other.
        """
        self._seen = self._file_states()
        try:
            self.contexts = TlsContexts.load(self._trust)
        except (InputError, OptionError) as error:
            self._failed = self._seen, str(error)
            raise
        self._read, self._failed = self._seen, None
        self._log_validity_problem()

    def validity_problem(self) -> str | None:
        """Why every other instance refuses the certificate of this one now; None where its dates are no reason to."""
        now, contexts = datetime.now(UTC), self.contexts
        if contexts.valid_from <= now <= contexts.valid_until:
            return None
        what, when = (
            ("valid_from", contexts.valid_from) if now < contexts.valid_from else ("ended", contexts.valid_until)
        )
        return f"{self._trust.certificate}: this certificate {what} at {when:%Y-%m-%d %H:%M:%S} UTC; other instances refuse it"

    def reload_if_changed(self) -> None:
        """Reads the files again where they have changed since, and have not for one reload_if_changed, so that nobody is still writing them.

        What is wrong with them is logged once for each change, and they are read again at each reload_if_changed until nothing is: what was in the
        way may not be in them, such as the rights of a file. That the own certificate has ended is logged once.
        """
        self._log_validity_problem()
        seen, self._seen = self._seen, self._file_states()
        if self._seen == self._read or self._seen != seen:
            return
        failed = self._failed
        try:
            self.reload()
        except (InputError, OptionError) as error:
            if self._failed != failed:
                LOGGER.warning(
                    "the certificates have changed, and cannot be used: %s; those from before go on to be used", error
                )
        else:
            LOGGER.info("the certificates have changed, and were read again: new connections use them")

    def _log_validity_problem(self) -> None:
        told, self._reported_problem = self._reported_problem, self.validity_problem()
        if self._reported_problem is not None and self._reported_problem != told:
            LOGGER.warning("%s", self._reported_problem)

    def _file_states(self) -> _FileStates:
        return tuple(_file_state(file) for file in self._files)


def _file_state(file: Path) -> tuple[int, int, int] | None:
    try:
        said = file.stat()
    except OSError:
        return None
    return said.st_mtime_ns, said.st_size, said.st_ino
