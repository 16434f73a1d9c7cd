"""One direction of a secured conversation: sealing and opening of fragments, and the signatures of headers and bodies."""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Sequence
from typing import Final

from ssbroker.security.keys import Sealer, derive_keys, load_cryptography

SALT_BYTES: Final = 16
"""The length of the salt before a sealed fragment; because of the salt, no two runs of a sender seal with the same key."""
SEAL_BYTES: Final = SALT_BYTES + 16
"""The additional length of a sealed fragment: the salt and the tag."""
SIGNATURE_BYTES: Final = 16
"""The length of a header signature."""

_NONCE: Final = struct.Struct(">QI")
_POSITION: Final = struct.Struct(">IIQ")
_FRAGMENT_BIT: Final = 1 << 31
_BLOCK: Final = 16


class SecuredDirection:
    """Encrypts and authenticates (seals) the fragments that one endpoint of a conversation sends, and verifies and decrypts (opens) them for the other endpoint.

    The nonce consists of the direction, the sequence number, the fragment number, and whether the header names the
    target's broker id, the only header field that can change between transmissions. A retransmitted fragment therefore
    has the same bytes, and no nonce is used with two headers.

    A database that was restored from an old backup, or a copy of a database, sends different messages under sequence
    numbers that were used before. Therefore, the sealing key does not depend on the session key alone: each object
    generates a salt before it first seals, derives its sealing key from the session key and the salt, and puts the salt
    before each fragment.

    Args:
        session_key: The session key of the conversation, 32 bytes.
        conversation_id: The conversation, 16 bytes.
        is_initiator: Whether the initiator is the sender.

    Raises:
        OptionError: The session key is not 32 bytes.
        MissingDependencyError: The `cryptography` package is not installed.

    Examples:
        >>> sender = SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True)
        >>> sealed = sender.seal(b"Hello", sequence=0, fragment=0, is_bound=False, header=b"to Bank")
        >>> sender.open(sealed, sequence=0, fragment=0, is_bound=False, header=b"to Bank")
        b'Hello'
        >>> sender.open(sealed, sequence=0, fragment=0, is_bound=False, header=b"to Thief") is None
        True
    """

    __slots__ = (
        "_conversation",
        "_decrypt",
        "_encrypt",
        "_header_key",
        "_inbound",
        "_invalid_tag",
        "_is_initiator",
        "_outbound",
        "_seal_key",
        "_siv",
        "signature_key",
    )

    def __init__(self, session_key: bytes, *, conversation_id: bytes, is_initiator: bool) -> None:
        keys = derive_keys(session_key, conversation_id=conversation_id, is_initiator=is_initiator)
        library = load_cryptography()
        self._seal_key = keys.seal
        self._outbound: tuple[bytes, Sealer] | None = None
        self._inbound: tuple[bytes, Sealer] | None = None
        self._siv = library.siv(keys.broker_errors)
        self._invalid_tag = library.invalid_tag
        self._header_key = keys.header
        self._encrypt = library.encryptor(keys.signature)
        self._decrypt = library.decryptor(keys.signature)
        self._conversation = self._encrypt.update(conversation_id)
        self._is_initiator = is_initiator
        self.signature_key = keys.signature

    def seal(self, part: bytes, *, sequence: int, fragment: int, is_bound: bool, header: bytes) -> bytes:
        """Seals a fragment.

        Args:
            part: The content of the fragment.
            sequence: The message number.
            fragment: The fragment number.
            is_bound: Whether the header names the target's broker id.
            header: The header, which is authenticated together with the fragment.

        Returns:
            The sealed content.
        """
        if self._outbound is None:
            salt = secrets.token_bytes(SALT_BYTES)
            self._outbound = salt, self._sealer(salt)
        salt, sealer = self._outbound
        return salt + sealer.encrypt(self._nonce(sequence, fragment, is_bound), part, header)

    def open(self, sealed: bytes, *, sequence: int, fragment: int, is_bound: bool, header: bytes) -> bytes | None:
        """Opens a fragment that was sealed with the same arguments; returns None if the fragment or an argument differs."""
        salt = sealed[:SALT_BYTES]
        cached = self._inbound
        sealer = cached[1] if cached is not None and cached[0] == salt else self._sealer(salt)
        try:
            part = sealer.decrypt(self._nonce(sequence, fragment, is_bound), sealed[SALT_BYTES:], header)
        except (self._invalid_tag, ValueError):
            return None
        self._inbound = salt, sealer
        return part

    def seal_notice(self, body: bytes, *, header: bytes) -> bytes:
        """Seals a broker error, which has no sequence number; the result is deterministic."""
        return self._siv.encrypt(body, [header])

    def open_notice(self, sealed: bytes, *, header: bytes) -> bytes | None:
        """Opens a broker error; returns None if the error or its header differs."""
        try:
            return self._siv.decrypt(sealed, [header])
        except (self._invalid_tag, ValueError):
            return None

    def sign_header(self, header: bytes) -> bytes:
        """Returns the signature of a header and its acknowledgement: the first 16 bytes of HMAC-SHA-256."""
        return hmac.digest(self._header_key, header, "sha256")[:SIGNATURE_BYTES]

    def verify_header(self, header: bytes, signature: bytes) -> bool:
        """Returns whether a signature matches a header, in constant time."""
        return hmac.compare_digest(self.sign_header(header), signature)

    def message_digests(self, sequences: Sequence[int], signatures: Sequence[bytes]) -> list[bytes]:
        """Decrypts message signatures into MD5 digests, so that messages can be checked without the key.

        The signature of a different message yields arbitrary bytes.
        """
        count = self._is_initiator << 31
        positions = b"".join([_POSITION.pack(0, count, sequence) for sequence in sequences])
        return self._digests(positions, signatures)

    def fragment_digests(
        self, positions: Sequence[tuple[int, int, int]], messages: Sequence[bytes], signatures: Sequence[bytes]
    ) -> list[bytes]:
        """Decrypts fragment signatures into MD5 digests.

        Args:
            positions: The sequence number, fragment number and fragment count of each fragment.
            messages: The message signature of each fragment, as received.
            signatures: The fragment signatures, 16 bytes each.

        Returns:
            The digests; arbitrary bytes for the signature of a different fragment.
        """
        top = self._is_initiator << 31
        packed = b"".join(
            [_POSITION.pack(number | _FRAGMENT_BIT, count | top, sequence) for sequence, number, count in positions]
        )
        inner = self._encrypt.update(_xor(packed, self._conversation * len(positions)))
        return self._digests(inner, signatures, b"".join(messages))

    def _digests(self, positions: bytes, signatures: Sequence[bytes], more: bytes | None = None) -> list[bytes]:
        over = self._conversation * len(signatures) if more is None else more
        plain = _xor(self._decrypt.update(b"".join(signatures)), self._encrypt.update(_xor(positions, over)))
        return [plain[start : start + _BLOCK] for start in range(0, len(plain), _BLOCK)]

    def _sealer(self, salt: bytes) -> Sealer:
        return load_cryptography().gcm(hmac.digest(self._seal_key, salt, "sha256"))

    def _nonce(self, sequence: int, fragment: int, is_bound: bool) -> bytes:  # noqa: FBT001 - private, for speed
        return _NONCE.pack(sequence | (self._is_initiator << 63), fragment | (is_bound << 31))


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))
