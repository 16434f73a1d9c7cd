"""Session keys and what is derived from them (B32): each key serves one purpose, in one direction, in one conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ssbroker import options
from ssbroker.exceptions import OptionError
from ssbroker.security.ciphers import cryptography_of

SESSION_KEY_BYTES: Final = 32
"""The length of a session key."""

_LABEL: Final = b"ssbroker dialog 2\0"
_AES_256: Final = 32
_AES_256_SIV: Final = 64
_HMAC: Final = 32


@dataclass(frozen=True, slots=True)
class DirectionKeys:
    """The keys of one direction of a conversation.

    Attributes:
        seal: From this and a salt comes the key that seals parts of messages (AES-256-GCM).
        notice: Seals what has no number of its own, so no nonce: errors of the broker (AES-256-SIV).
        header: Signs headers and acknowledgements (HMAC-SHA-256).
        signature: Encrypts the MD5 signatures of messages and fragments (AES-256).
    """

    seal: bytes
    notice: bytes
    header: bytes
    signature: bytes

    def __repr__(self) -> str:
        return "DirectionKeys(...)"  # what is printed ends up in logs


def derived(session_key: bytes, *, conversation_id: bytes, is_initiator: bool) -> DirectionKeys:
    """The keys of what one side of a conversation sends.

    Args:
        session_key: The conversation's session key, 32 bytes.
        conversation_id: The conversation.
        is_initiator: Whether it is the initiator who sends.

    Returns:
        The keys, by HKDF-SHA-256 from the session key, for this conversation and direction only.

    Raises:
        OptionError: The session key is not 32 bytes.
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> one, other = (derived(bytes(32), conversation_id=bytes(16), is_initiator=side) for side in (True, False))
        >>> len({one.seal, one.header, one.signature, other.seal, other.header, other.signature})
        6
    """
    options.flag(is_initiator, name="is_initiator")
    given: object = session_key
    if not isinstance(given, bytes) or len(given) != SESSION_KEY_BYTES:
        raise OptionError(f"session_key: expected {SESSION_KEY_BYTES} bytes; got something else")
    library = cryptography_of()
    lengths = (_AES_256, _AES_256_SIV, _HMAC, _AES_256)
    told = _LABEL + (b"initiator\0" if is_initiator else b"target\0") + conversation_id
    material = library.hkdf(session_key, length=sum(lengths), told=told)
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    return DirectionKeys(*(material[end - length : end] for end, length in zip(ends, lengths, strict=True)))
