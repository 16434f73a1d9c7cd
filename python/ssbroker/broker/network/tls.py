"""TLS without I/O, trusted peers, and certificates that are reloaded when their files change."""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from ssbroker._arguments import path_argument, string_list
from ssbroker.exceptions import InputError, OptionError, PeerError
from ssbroker.protocol.wire.frames import Data
from ssbroker.security.certificates import can_sign, read_all_der, validity_period

PROTOCOL: Final = "ssbroker/1"
"""The ALPN name that both sides must offer, so that bytes of other protocols are never accepted."""


@dataclass(frozen=True, slots=True, init=False)
class Trust:
    """The certificate of this instance, and the peers that it trusts. All certificates are PEM files.

    Attributes:
        certificate: File with the instance's own certificate, followed by any intermediate certificates.
        key: File with the unencrypted private key.
        pinned: Files with the certificates of peers that may connect, by principal. A principal may have several
            certificates, in one file or in many: for example the certificates of a mirrored pair, or an old certificate and its successor.
        authority: File with the certificates of one or more certificate authorities, if any. The principal of a
            certificate that an authority has signed is its first DNS name.
        names: The principals that may connect with a certificate signed by `authority`.

    Raises:
        OptionError: The values are inconsistent, or no peer could be authenticated.

    Examples:
        >>> from ssbroker import Trust
        >>> Trust(certificate="shop.pem", key="shop.key", authority="authority.pem", names=["stock", "billing"]).names
        ['stock', 'billing']
        >>> Trust(certificate="shop.pem", key="shop.key", authority="authority.pem")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: names: required with an authority; pass at least one principal for which the authority may issue certificates
        >>> Trust(certificate="shop.pem", key="shop.key")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: no peer can be authenticated: pass pinned certificates, or an authority and names
    """

    certificate: Path
    key: Path = field(repr=False)
    pinned: Mapping[str, Sequence[Path]]
    authority: Path | None
    names: Sequence[str]

    def __init__(
        self,
        *,
        certificate: str | os.PathLike[str],
        key: str | os.PathLike[str],
        pinned: Mapping[str, Sequence[str | os.PathLike[str]]] | None = None,
        authority: str | os.PathLike[str] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        string_list(names, name="names")
        given: object = {} if pinned is None else pinned
        if not isinstance(given, Mapping) or not all(isinstance(each, str) for each in given):
            raise OptionError(f"pinned: expected a mapping from principals to certificate files, got {given!r:.80}")
        values = {
            "certificate": path_argument(certificate, name="certificate"),
            "key": path_argument(key, name="key"),
            "pinned": {principal: _pinned_files(principal, files) for principal, files in (pinned or {}).items()},
            "authority": None if authority is None else path_argument(authority, name="authority"),
            "names": names,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.authority is not None and not self.names:
            raise OptionError(
                "names: required with an authority; pass at least one principal for which the authority may issue certificates"
            )
        if self.authority is None and self.names:
            raise OptionError("names: used only with an authority; pass authority, or omit names")
        if self.authority is None and not any(self.pinned.values()):
            raise OptionError("no peer can be authenticated: pass pinned certificates, or an authority and names")
        if not all(self.pinned):
            raise OptionError("pinned: a principal must not be empty")


def _pinned_files(principal: str, files: object) -> tuple[Path, ...]:
    name = f"pinned: {principal}"
    if isinstance(files, str) or not isinstance(files, Sequence):
        raise OptionError(f"{name}: expected a sequence of paths, got {files!r:.80}")
    return tuple(path_argument(file, name=name) for file in files)


class Principals:
    """Maps certificates to principals.

    Raises:
        InputError: A file cannot be read, or does not contain a certificate.
        OptionError: A certificate is pinned for two principals, or a pinned certificate can sign others although an authority is given.
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
                f"{file}: the pinned certificate of {principal} can sign other certificates, which is not allowed together with"
                " an authority; issue it without CA:TRUE, or omit the authority"
            )
        for binary in certificates:
            known = self._pins.setdefault(hashlib.sha256(binary).digest(), principal)
            if known != principal:
                raise OptionError(
                    f"{file}: the certificate is pinned for two principals, {known} and {principal}; pin it for one"
                )
        self.certificates.extend((file, binary) for binary in certificates)

    def principal_of(self, connection: ssl.SSLObject) -> str | None:
        """Returns the principal of the peer, whose certificate TLS has verified; None if the peer may not connect."""
        binary = connection.getpeercert(binary_form=True)
        if binary is None:
            return None
        pinned = self._pins.get(hashlib.sha256(binary).digest())
        if pinned is not None or not self._names:
            return pinned
        name = name_of(connection)
        return name if name in self._names else None


def name_of(connection: ssl.SSLObject) -> str | None:
    """Returns the first DNS name in the peer's verified certificate; None if there is none or the names cannot be read."""
    try:
        alternatives = (connection.getpeercert() or {}).get("subjectAltName", ())
    except ValueError:  # such as names that are not valid text
        return None
    return next((str(pair[1]) for pair in alternatives if pair[0] == "DNS"), None)


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """The TLS contexts of both directions.

    Attributes:
        accept: For accepted connections.
        dial: For dialled connections.
        principals: The principals of certificates.
        valid_from: Start of the validity period of the instance's own certificate.
        valid_until: End of the validity period.
        signature_problem: Why the instance's own certificate does not lead to the authority; None if it leads to the authority, or if there is no authority.
    """

    accept: ssl.SSLContext
    dial: ssl.SSLContext
    principals: Principals
    valid_from: datetime
    valid_until: datetime
    signature_problem: str | None

    @classmethod
    def load(cls, trust: Trust) -> TlsContexts:
        """Reads the files of `trust`, and allows TLS 1.3 only, with certificates on both sides and without session tickets.

        Raises:
            InputError: A file cannot be read, or its contents are invalid.
            OptionError: The files are inconsistent.
        """
        principals = Principals(trust)
        own = _read(trust.certificate)
        _read(trust.key)  # OpenSSL does not report which of the two files it cannot read
        accept, dial = (
            _context(protocol, trust, principals) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        try:
            valid_from, valid_until = validity_period(own)
        except InputError as error:  # OpenSSL accepts some certificates that `cryptography` rejects
            raise InputError(f"{trust.certificate}: {error}") from error
        return cls(accept, dial, principals, valid_from, valid_until, _signature_problem(accept, trust))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error


def _context(protocol: int, trust: Trust, principals: Principals) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A name in the certificate is a principal, not a host; `names` and `pinned` decide who may answer.
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
        except ssl.SSLError as error:  # such as names that are not valid text
            raise InputError(f"{file}: expected a certificate for TLS; OpenSSL cannot read it") from error
    if trust.authority is not None:
        try:
            context.load_verify_locations(cafile=trust.authority)
        except ssl.SSLError as error:
            raise InputError(f"{trust.authority}: expected CA certificates in PEM format") from error
        except OSError as error:
            raise InputError(f"{trust.authority}: cannot be read: {error.strerror}") from error
    return context


def _signature_problem(accept: ssl.SSLContext, trust: Trust) -> str | None:
    """Returns why a peer that trusts only the authority would refuse this instance's certificate; None if the peer would accept it.

    Starts a handshake in memory to find out. The dates of the certificate are not checked, and None is also returned if
    there is no authority.
    """
    if trust.authority is None:
        return None
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    peer.check_hostname = False
    peer.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    peer.load_verify_locations(cafile=trust.authority)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = peer.wrap_bio(to_client, to_server)
    server = accept.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return None if error.verify_code in _TIME_PROBLEMS else error.verify_message
        except ssl.SSLError:
            break
    return None


_TIME_PROBLEMS: Final = (9, 10)
"""OpenSSL's codes for certificates that are not yet valid or have expired."""


def _load_own(context: ssl.SSLContext, trust: Trust) -> None:
    def refuse() -> str:
        raise OptionError(
            f"{trust.key}: the private key is encrypted; pass an unencrypted private key, in a file that only the user who runs ssbroker can read"
        )

    try:
        context.load_cert_chain(trust.certificate, trust.key, password=refuse)
    except ssl.SSLError as error:
        raise InputError(_problem_of_own(trust, error)) from error
    except OSError as error:  # removed since the check
        raise InputError(f"{trust.certificate}, {trust.key}: cannot be read: {error.strerror}") from error


def _problem_of_own(trust: Trust, error: ssl.SSLError) -> str:
    """Returns what is wrong with the certificate or the key; OpenSSL does not say which of them is wrong."""
    if b"CERTIFICATE-----" not in _read(trust.certificate):
        return f"{trust.certificate}: expected a certificate in PEM format; the file contains none"
    if b"PRIVATE KEY-----" not in _read(trust.key):
        return f"{trust.key}: expected a private key in PEM format; the file contains none"
    if error.reason in _MISMATCHES:
        return f"{trust.key}: the private key does not belong to the certificate {trust.certificate}"
    return f"{trust.certificate}, {trust.key}: expected a certificate in PEM format and its private key"


_MISMATCHES: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons if the key belongs to a different certificate; the last reason means a different kind of key."""
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
"""The TLS alerts with which a peer rejects a certificate."""


class Channel(Protocol):
    """Encrypts and decrypts the bytes of one connection; does no I/O."""

    @property
    def is_open(self) -> bool:
        """Whether the peer is authenticated, so that data may be sent."""

    @property
    def principal(self) -> str | None:
        """The principal that the peer has proven; None if unknown."""

    @property
    def method(self) -> str | None:
        """How the peer was authenticated, for `sys.dm_broker_connections`; None if it was not."""

    @property
    def unsent_bytes(self) -> int:
        """The number of encrypted bytes that have not been passed to the socket."""

    def received(self, data: Data) -> Data:
        """Returns the decrypted contents of received bytes.

        Raises:
            PeerError: The bytes are invalid, or the peer may not connect.
        """

    def seal(self, data: Data) -> None:
        """Encrypts data to send; requires an open channel.

        Raises:
            PeerError: The peer has ended TLS.
        """

    def data_to_send(self) -> bytes:
        """Returns the bytes for the socket."""

    def close(self) -> None:
        """Ends the sending direction."""


class UnencryptedChannel:
    """Passes bytes through unchanged, for any peer (`allow_unencrypted`)."""

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
    """TLS 1.3 with certificates on both sides.

    An accepted connection gets its TLS object only once its first record is complete: the object needs more memory than
    a slow, unauthenticated peer should be able to occupy.
    """

    __slots__ = (
        "_contexts",
        "_first_record",
        "_has_ended",
        "_incoming",
        "_is_accept",
        "_outgoing",
        "_tls",
        "principal",
    )

    method: Final = "CERTIFICATE"

    def __init__(self, contexts: TlsContexts, *, is_accept: bool) -> None:
        self._contexts: Final = contexts
        self._is_accept: Final = is_accept
        self._first_record: bytes | None = b"" if is_accept else None
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._has_ended = False
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
        if self._has_ended:  # OpenSSL would not take the data from the buffer
            raise PeerError("the peer sent data after it had ended TLS")
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
            self._has_ended = True
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
        with suppress(ssl.SSLError):  # does not wait for the close_notify of the peer
            self._tls.unwrap()

    def _tls_object(self) -> ssl.SSLObject:
        if self._tls is None:
            context = self._contexts.accept if self._is_accept else self._contexts.dial
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=self._is_accept)
        return self._tls

    def _handshake(self, tls: ssl.SSLObject) -> bool:
        """Continues the handshake; returns whether it is complete."""
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise PeerError(_describe(error)) from error
        if tls.selected_alpn_protocol() != PROTOCOL:
            raise PeerError(f"the peer does not offer the protocol {PROTOCOL} (ALPN)")
        self.principal = self._contexts.principals.principal_of(tls)
        if self.principal is None:
            raise PeerError(_refusal(tls))
        return True


def _refusal(tls: ssl.SSLObject) -> str:
    """Returns why a peer with a valid certificate is refused, and how to accept it."""
    name = name_of(tls)
    if name is not None:
        return (
            f"the peer's certificate is valid, but {name} is not allowed to connect; to accept this peer, use the options authority and names, "
            "or the option pinned"
        )
    fingerprint = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
    return (
        "the peer's certificate is valid, but is not pinned and has no DNS name; to accept this peer, use the option pinned with its certificate, "
        f"whose SHA-256 fingerprint is {fingerprint}"
    )


def _is_complete_record(data: bytes) -> bool:
    """Returns whether the first TLS record is complete; raises PeerError if it is not a handshake record."""
    if data[0] != _HANDSHAKE or (len(data) > 1 and data[1] != _VERSION):
        raise PeerError("the peer does not use TLS, which is required")
    if len(data) < _HEADER_BYTES:
        return False
    length = int.from_bytes(data[3:_HEADER_BYTES])
    if length > _RECORD_BYTES_MAX:
        raise PeerError(f"the first TLS record has {length} bytes; at most {_RECORD_BYTES_MAX} are allowed")
    return len(data) >= _HEADER_BYTES + length


def _describe(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
        return "the peer ended TLS"
    if error.reason == "WRONG_VERSION_NUMBER":  # OpenSSL reports this for bytes that are not TLS
        return "the peer does not use TLS"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    alert = reason.partition(" alert ")[2]
    if alert in _CERTIFICATE_ALERTS:
        return f"the peer rejects the certificate of this instance: {alert}"
    return f"TLS: {reason}"


_LOGGER: Final = logging.getLogger("ssbroker.broker")
_FileStates: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class TlsCredentials:
    """The TLS contexts for new connections, reloaded when the files change. Existing connections keep their contexts.

    Attributes:
        contexts: The contexts as last read.

    Raises:
        InputError: A file cannot be read, or its contents are invalid.
        OptionError: The files are inconsistent.
    """

    def __init__(self, trust: Trust) -> None:
        self._files: Final = [trust.certificate, trust.key, *chain.from_iterable(trust.pinned.values())]
        if trust.authority is not None:
            self._files.append(trust.authority)
        self._trust: Final = trust
        self._read: _FileStates = self._file_states()
        self._seen: _FileStates = self._read
        self._failed: tuple[_FileStates, str] | None = None
        self._reported: set[str] = set()
        self.contexts: TlsContexts = TlsContexts.load(trust)
        self._log_problems()

    def reload(self) -> None:
        """Reads the files again; if one is invalid, the previous contexts remain in use.

        Raises:
            InputError: A file cannot be read, or its contents are invalid.
            OptionError: The files are inconsistent.
        """
        self._seen = self._file_states()
        try:
            self.contexts = TlsContexts.load(self._trust)
        except (InputError, OptionError) as error:
            self._failed = self._seen, str(error)
            raise
        self._read, self._failed = self._seen, None
        self._log_problems()

    def validity_problem(self) -> str | None:
        """Returns a message if this instance's certificate is not yet valid or has expired; None if it is currently valid."""
        now, contexts = datetime.now(UTC), self.contexts
        if contexts.valid_from <= now <= contexts.valid_until:
            return None
        if now < contexts.valid_from:
            problem = f"the certificate is not valid before {contexts.valid_from:%Y-%m-%d %H:%M:%S} UTC"
        else:
            problem = f"the certificate expired at {contexts.valid_until:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self._trust.certificate}: {problem}; peers refuse it"

    def _signature_problem(self) -> str | None:
        problem, trust = self.contexts.signature_problem, self._trust
        if problem is None:
            return None
        return (
            f"{trust.certificate}: the certificate is not signed by {trust.authority}: {problem}; peers that trust only this authority "
            "refuse it"
        )

    def reload_if_changed(self) -> None:
        """Reads the files again if they have changed, but not since the previous call, which means that they are no longer being written.

        An invalid file is logged once for each change. It is read again on each call, because the cause may lie outside
        the file, such as its permissions. A certificate that peers refuse is logged once.
        """
        self._log_problems()
        previous, self._seen = self._seen, self._file_states()
        if self._seen == self._read or self._seen != previous:
            return
        failed = self._failed
        try:
            self.reload()
        except (InputError, OptionError) as error:
            if self._failed != failed:
                _LOGGER.warning(
                    "the changed certificates cannot be used: %s; the previous certificates remain in use", error
                )
        else:
            _LOGGER.info("changed certificates were loaded; new connections use them")

    def _log_problems(self) -> None:
        """Logs once why peers refuse this instance's certificate."""
        previous = self._reported
        problems = [self.validity_problem(), self._signature_problem()]
        self._reported = {problem for problem in problems if problem is not None}
        for problem in problems:
            if problem is not None and problem not in previous:
                _LOGGER.warning("%s", problem)

    def _file_states(self) -> _FileStates:
        return tuple(_file_state(file) for file in self._files)


def _file_state(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
