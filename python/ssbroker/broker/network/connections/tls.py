"""What bytes go through on their way to and from a socket: TLS, or nothing. Without I/O: the socket is somebody else's."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final, Protocol

from ssbroker.broker.network.connections.trust import PROTOCOL, Contexts, name_of
from ssbroker.exceptions import PeerError
from ssbroker.protocol.adjacent.frames import Data

_HANDSHAKE: Final = 22
_VERSION: Final = 3
_HEADER_BYTES: Final = 5
_RECORD_BYTES_MAX: Final = 16 << 10
_READ_BYTES: Final = 64 << 10
_UNBELIEVED: Final = frozenset(
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


class Plain:
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


class Secured:
    """TLS 1.3 with certificates on both sides (N8).

    An accepted connection costs no more than the bytes that it has sent until its first record is whole: only then TLS is set up, which
    takes more memory than a slow and unproven far side is worth (N11).

    Args:
        contexts: What it is agreed with.
        is_accept: Whether the far side dialled.
    """

    __slots__ = ("_contexts", "_first", "_incoming", "_is_accept", "_outgoing", "_tls", "principal")

    method: Final = "CERTIFICATE"

    def __init__(self, contexts: Contexts, *, is_accept: bool) -> None:
        self._contexts: Final = contexts
        self._is_accept: Final = is_accept
        self._first: bytes | None = b"" if is_accept else None
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self.principal: str | None = None
        if not is_accept:
            self._step(self._begun())

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
        if self._first is not None:
            self._first += data
            if not _is_whole(self._first):
                return b""
            data, self._first = self._first, None
        tls = self._begun()
        self._incoming.write(data)
        if not self.is_open and not self._step(tls):
            return b""
        pieces = []
        try:
            while piece := tls.read(_READ_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise PeerError(_told(error)) from error
        return b"".join(pieces)

    def seal(self, data: Data) -> None:
        """See `Channel`."""
        try:
            self._begun().write(data)
        except ssl.SSLError as error:
            raise PeerError(_told(error)) from error

    def data_to_send(self) -> bytes:
        """See `Channel`."""
        return self._outgoing.read()

    def close(self) -> None:
        """See `Channel`."""
        if self._tls is None or not self.is_open:
            return
        with suppress(ssl.SSLError):  # the far side's own farewell is not waited for
            self._tls.unwrap()

    def _begun(self) -> ssl.SSLObject:
        if self._tls is None:
            context = self._contexts.accept if self._is_accept else self._contexts.dial
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=self._is_accept)
        return self._tls

    def _step(self, tls: ssl.SSLObject) -> bool:
        """Goes on agreeing; whether it is done."""
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise PeerError(_told(error)) from error
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


def _is_whole(data: bytes) -> bool:
    """Whether the first record of TLS is there; a PeerError where it is none."""
    if data[0] != _HANDSHAKE or (len(data) > 1 and data[1] != _VERSION):
        raise PeerError("the far side does not speak TLS, which is asked for here")
    if len(data) < _HEADER_BYTES:
        return False
    length = int.from_bytes(data[3:_HEADER_BYTES])
    if length > _RECORD_BYTES_MAX:
        raise PeerError(f"a record of TLS has at most {_RECORD_BYTES_MAX} bytes; the first one says {length}")
    return len(data) >= _HEADER_BYTES + length


def _told(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the far side's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
        return "the far side ended TLS"
    if error.reason == "WRONG_VERSION_NUMBER":  # what OpenSSL says of bytes that are no TLS
        return "TLS: the far side does not speak it"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    alert = reason.partition(" alert ")[2]
    if alert in _UNBELIEVED:
        return f"the far side does not believe the certificate of this instance: {alert}"
    return f"TLS: {reason}"
