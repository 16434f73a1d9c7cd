"""One direction of a secured conversation: sealing and opening of parts, and the signatures of headers and bodies."""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Sequence
from typing import Final

from ssbroker.security.keys import Sealer, derive_keys, load_cryptography

SALT_BYTES: Final = 16
"""What stands before a sealed part, so that no two runs of a sender seal with the same key."""
SEAL_BYTES: Final = SALT_BYTES + 16
"""By how much a sealed part is longer: the salt, and the tag."""
SIGNATURE_BYTES: Final = 16
"""The length of a header's signature."""

_NONCE: Final = struct.Struct(">QI")
_PLACE: Final = struct.Struct(">IIQ")
_TOP: Final = 1 << 31
_BLOCK: Final = 16


class SecuredDirection:
    """Seals what one side of a conversation sends, and opens it at the other.

    A nonce is made of direction, sequence number, fragment number and whether the header names the target's broker id, the one field
    that may change from one sending of a fragment to the next. So a fragment that is sent again is the same bytes, and no nonce ever
    stands with two headers.

    A database that was restored from an old copy, or a copy of it, sends other messages under numbers that were used before. So the key
    of the seal is not the conversation's alone: each object draws a salt before it first seals, the key is derived from both, and the salt
    stands before each part.

    Args:
        session_key: The conversation's session key, 32 bytes.
        conversation_id: The conversation, 16 bytes.
        is_initiator: Whether it is the initiator who sends.

    Raises:
        OptionError: The session key is not 32 bytes.
        MissingDependencyError: The library `cryptography` is not installed.

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
        "_direction",
        "_encrypt",
        "_far",
        "_header_key",
        "_invalid",
        "_near",
        "_seal_key",
        "_siv",
        "signature_key",
    )

    def __init__(self, session_key: bytes, *, conversation_id: bytes, is_initiator: bool) -> None:
        keys = derive_keys(session_key, conversation_id=conversation_id, is_initiator=is_initiator)
        library = load_cryptography()
        self._seal_key = keys.seal
        self._near: tuple[bytes, Sealer] | None = None
        self._far: tuple[bytes, Sealer] | None = None
        self._siv = library.siv(keys.notice)
        self._invalid = library.invalid
        self._header_key = keys.header
        self._encrypt = library.encryptor(keys.signature)
        self._decrypt = library.decryptor(keys.signature)
        self._conversation = self._encrypt.update(conversation_id)
        self._direction = is_initiator
        self.signature_key = keys.signature

    def seal(self, part: bytes, *, sequence: int, fragment: int, is_bound: bool, header: bytes) -> bytes:
        """Seals a part of a message.

        Args:
            part: The part.
            sequence: The message's number.
            fragment: The fragment's number.
            is_bound: Whether the header names the target's broker id.
            header: All that the part must not be parted from.

        Returns:
            The sealed part.

        Examples:
            >>> direction = SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True)
            >>> len(direction.seal(b"Hello", sequence=0, fragment=0, is_bound=True, header=b"")) - len(b"Hello")
            32
        """
        if self._near is None:
            salt = secrets.token_bytes(SALT_BYTES)
            self._near = salt, self._sealer(salt)
        salt, sealer = self._near
        return salt + sealer.encrypt(self._nonce(sequence, fragment, is_bound), part, header)

    def open(self, sealed: bytes, *, sequence: int, fragment: int, is_bound: bool, header: bytes) -> bytes | None:
        """Opens a part, if nothing about it was changed.

        Args:
            sealed: The sealed part.
            sequence: The message's number.
            fragment: The fragment's number.
            is_bound: Whether the header names the target's broker id.
            header: What it was sealed with.

        Returns:
            The part; None where it, the header or the place are not those that were sealed.

        Examples:
            >>> direction = SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True)
            >>> direction.open(bytes(21), sequence=0, fragment=0, is_bound=True, header=b"") is None
            True
        """
        salt = sealed[:SALT_BYTES]
        known = self._far
        sealer = known[1] if known is not None and known[0] == salt else self._sealer(salt)
        try:
            part = sealer.decrypt(self._nonce(sequence, fragment, is_bound), sealed[SALT_BYTES:], header)
        except (self._invalid, ValueError):
            return None
        self._far = salt, sealer
        return part

    def seal_notice(self, body: bytes, *, header: bytes) -> bytes:
        """Seals what has no sequence number: an error of the broker.

        Args:
            body: The body, not empty.
            header: All that it must not be parted from.

        Returns:
            The sealed body; the same for the same input.

        Examples:
            >>> direction = SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True)
            >>> direction.open_notice(direction.seal_notice(b"gone", header=b"x"), header=b"x")
            b'gone'
        """
        return self._siv.encrypt(body, [header])

    def open_notice(self, sealed: bytes, *, header: bytes) -> bytes | None:
        """Opens what has no sequence number, if nothing about it was changed.

        Args:
            sealed: The sealed body.
            header: What it was sealed with.

        Returns:
            The body, or None.

        Examples:
            >>> SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True).open_notice(b"", header=b"") is None
            True
        """
        try:
            return self._siv.decrypt(sealed, [header])
        except (self._invalid, ValueError):
            return None

    def sign_header(self, header: bytes) -> bytes:
        """The signature of a header, with the acknowledgement that it carries.

        Args:
            header: The header as bytes.

        Returns:
            HMAC-SHA-256, its first 16 bytes.

        Examples:
            >>> len(SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True).sign_header(b"header"))
            16
        """
        return hmac.digest(self._header_key, header, "sha256")[:SIGNATURE_BYTES]

    def verify_header(self, header: bytes, signature: bytes) -> bool:
        """Whether a header's signature is its own; the time does not depend on where it differs.

        Args:
            header: The header as bytes.
            signature: What came with it.

        Returns:
            Whether it matches.

        Examples:
            >>> SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True).verify_header(b"header", bytes(16))
            False
        """
        return hmac.compare_digest(self.sign_header(header), signature)

    def message_digests(self, sequences: Sequence[int], signatures: Sequence[bytes]) -> list[bytes]:
        """The MD5s that are in signatures of messages (M7), so that what is put together can be compared without the key.

        Args:
            sequences: The messages' numbers.
            signatures: A signature of 16 bytes for each.

        Returns:
            A digest for each; any bytes for a signature that is none of this message.

        Examples:
            >>> direction = SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True)
            >>> len(direction.message_digests([0, 1], [bytes(16), bytes(16)]))
            2
        """
        count = self._direction << 31
        places = b"".join([_PLACE.pack(0, count, sequence) for sequence in sequences])
        return self._digests(places, signatures)

    def fragment_digests(
        self, places: Sequence[tuple[int, int, int]], messages: Sequence[bytes], signatures: Sequence[bytes]
    ) -> list[bytes]:
        """The MD5s that are in signatures of fragments (M7).

        Args:
            places: Sequence number, fragment number and count of each.
            messages: The signature of each one's message, as it came.
            signatures: The signature of each, of 16 bytes.

        Returns:
            A digest for each; any bytes for a signature that is none of this fragment.

        Examples:
            >>> direction = SecuredDirection(bytes(32), conversation_id=bytes(16), is_initiator=True)
            >>> len(direction.fragment_digests([(0, 0, 2)], [bytes(16)], [bytes(16)]))
            1
        """
        top = self._direction << 31
        packed = b"".join([_PLACE.pack(number | _TOP, count | top, sequence) for sequence, number, count in places])
        inner = self._encrypt.update(_xor(packed, self._conversation * len(places)))
        return self._digests(inner, signatures, b"".join(messages))

    def _digests(self, places: bytes, signatures: Sequence[bytes], more: bytes | None = None) -> list[bytes]:
        over = self._conversation * len(signatures) if more is None else more
        plain = _xor(self._decrypt.update(b"".join(signatures)), self._encrypt.update(_xor(places, over)))
        return [plain[start : start + _BLOCK] for start in range(0, len(plain), _BLOCK)]

    def _sealer(self, salt: bytes) -> Sealer:
        return load_cryptography().gcm(hmac.digest(self._seal_key, salt, "sha256"))

    def _nonce(self, sequence: int, fragment: int, is_bound: bool) -> bytes:  # noqa: FBT001 - private, for speed
        return _NONCE.pack(sequence | (self._direction << 63), fragment | (is_bound << 31))


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))
