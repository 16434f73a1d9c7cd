"""The library `cryptography`, imported when a dialog is first secured and not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from ssbroker.exceptions import MissingDependencyError


class Sealer(Protocol):
    """AES in GCM mode, under one key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """The sealed data: as long as they are, and a tag of 16 bytes."""

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """The data; it raises where anything differs."""


class NoticeSealer(Protocol):
    """AES in SIV mode, under one key: without a nonce, and safe to use twice."""

    def encrypt(self, data: bytes, associated_data: list[bytes] | None, /) -> bytes:
        """The sealed data: a tag of 16 bytes, then as long as they are."""

    def decrypt(self, data: bytes, associated_data: list[bytes] | None, /) -> bytes:
        """The data; it raises where anything differs."""


class Blocks(Protocol):
    """AES on blocks, one way."""

    def update(self, data: bytes, /) -> bytes:
        """The blocks, each by itself."""


@dataclass(frozen=True, slots=True)
class Library:
    """What is used of the library.

    Attributes:
        gcm: A sealer by key.
        siv: A sealer of notices by key.
        encryptor: AES forwards by key.
        decryptor: AES backwards by key.
        invalid: What the sealers raise where a tag does not match.
    """

    gcm: Callable[[bytes], Sealer]
    siv: Callable[[bytes], NoticeSealer]
    encryptor: Callable[[bytes], Blocks]
    decryptor: Callable[[bytes], Blocks]
    invalid: type[Exception]

    def hkdf(self, key: bytes, *, length: int, told: bytes) -> bytes:
        """HKDF-SHA-256 without salt: the key is random already.

        Args:
            key: What is derived from.
            length: How many bytes are wanted.
            told: What they are for.

        Returns:
            The bytes.

        Examples:
            >>> len(cryptography_of().hkdf(bytes(32), length=48, told=b"example"))
            48
        """
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - the reason is the module's
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - the same

        return HKDF(hashes.SHA256(), length, salt=None, info=told).derive(key)


@cache
def cryptography_of() -> Library:
    """The library.

    Returns:
        What is used of it.

    Raises:
        MissingDependencyError: It is not installed.

    Examples:
        >>> sealer = cryptography_of().gcm(bytes(32))
        >>> sealer.decrypt(bytes(12), sealer.encrypt(bytes(12), b"Hello", b""), b"")
        b'Hello'
    """
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - imported only where a dialog is secured
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - the same
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV  # noqa: PLC0415 - the same
    except ImportError as error:
        raise MissingDependencyError(
            "secured dialogs need the library cryptography, which is not installed: pip install 'ssbroker[broker]'"
        ) from error

    def encryptor(key: bytes) -> Blocks:
        # ECB is right here: a block at a time is what the signatures are made of, and nothing else is encrypted by it.
        return Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - as said above

    def decryptor(key: bytes) -> Blocks:
        return Cipher(algorithms.AES(key), modes.ECB()).decryptor()  # noqa: S305 - the same

    return Library(AESGCM, AESSIV, encryptor, decryptor, InvalidTag)
