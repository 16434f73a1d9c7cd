"""Session keys, keys at rest, and the ciphers that use them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

from ssbroker._arguments import boolean
from ssbroker.exceptions import MissingDependencyError, OptionError


class Sealer(Protocol):
    """AES-GCM with one key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """Returns the encrypted data with a tag of 16 bytes."""

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """Returns the decrypted data; raises an error if the nonce, the data or the associated data differs."""


class DeterministicSealer(Protocol):
    """AES-SIV with one key, which needs no nonce and is deterministic."""

    def encrypt(self, data: bytes, associated_data: list[bytes] | None, /) -> bytes:
        """Returns a tag of 16 bytes with the encrypted data."""

    def decrypt(self, data: bytes, associated_data: list[bytes] | None, /) -> bytes:
        """Returns the decrypted data; raises an error if the data or the associated data differs."""


class Blocks(Protocol):
    """AES encryption or decryption of single blocks."""

    def update(self, data: bytes, /) -> bytes:
        """Returns the processed blocks."""


@dataclass(frozen=True, slots=True)
class CryptographyLibrary:
    """The functions used from the `cryptography` package.

    Attributes:
        gcm: Creates a sealer from a key.
        siv: Creates a deterministic sealer from a key.
        encryptor: Creates an AES block encryptor from a key.
        decryptor: Creates an AES block decryptor from a key.
        invalid_tag: The exception that sealers raise if a tag does not match.
    """

    gcm: Callable[[bytes], Sealer]
    siv: Callable[[bytes], DeterministicSealer]
    encryptor: Callable[[bytes], Blocks]
    decryptor: Callable[[bytes], Blocks]
    invalid_tag: type[Exception]

    def hkdf(self, key: bytes, *, length: int, info: bytes) -> bytes:
        """Derives `length` bytes from a random key with HKDF-SHA-256 without salt; `info` is the purpose of the bytes."""
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - imported only where a dialog is secured
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - the same

        return HKDF(hashes.SHA256(), length, salt=None, info=info).derive(key)


@cache
def load_cryptography() -> CryptographyLibrary:
    """Imports the `cryptography` package.

    Raises:
        MissingDependencyError: The package is not installed.

    Examples:
        >>> sealer = load_cryptography().gcm(bytes(32))
        >>> sealer.decrypt(bytes(12), sealer.encrypt(bytes(12), b"Hello", b""), b"")
        b'Hello'
    """
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - imported only where a dialog is secured
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - the same
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV  # noqa: PLC0415 - the same
    except ImportError as error:
        raise MissingDependencyError("secured dialogs need cryptography: pip install 'ssbroker[broker]'") from error

    def encryptor(key: bytes) -> Blocks:
        # ECB is safe here, because it encrypts only signatures, which are single blocks.
        return Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - see above

    def decryptor(key: bytes) -> Blocks:
        return Cipher(algorithms.AES(key), modes.ECB()).decryptor()  # noqa: S305 - the same

    return CryptographyLibrary(AESGCM, AESSIV, encryptor, decryptor, InvalidTag)


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
        seal: The key from which, with a salt, the key that seals fragments is derived (AES-256-GCM).
        broker_errors: Seals broker errors, which have no sequence number that could serve as a nonce (AES-256-SIV).
        header: Signs headers and acknowledgements (HMAC-SHA-256).
        signature: Encrypts the MD5 signatures of messages and fragments (AES-256).
    """

    seal: bytes
    broker_errors: bytes
    header: bytes
    signature: bytes

    def __repr__(self) -> str:
        return "DirectionKeys(...)"  # printed values end up in logs


def derive_keys(session_key: bytes, *, conversation_id: bytes, is_initiator: bool) -> DirectionKeys:
    """Derives the keys of one direction of a conversation from its session key, with HKDF-SHA-256.

    Args:
        session_key: The session key of the conversation, 32 bytes.
        conversation_id: The conversation.
        is_initiator: Whether the initiator is the sender.

    Raises:
        OptionError: The session key is not 32 bytes.
        MissingDependencyError: The `cryptography` package is not installed.

    Examples:
        >>> one, other = (derive_keys(bytes(32), conversation_id=bytes(16), is_initiator=side) for side in (True, False))
        >>> len({one.seal, one.header, one.signature, other.seal, other.header, other.signature})
        6
    """
    boolean(is_initiator, name="is_initiator")
    given: object = session_key
    if not isinstance(given, bytes) or len(given) != SESSION_KEY_BYTES:
        actual = f"{len(given)} bytes" if isinstance(given, bytes) else type(given).__name__
        raise OptionError(f"session_key: expected {SESSION_KEY_BYTES} bytes, got {actual}")
    library = load_cryptography()
    lengths = (_AES_256, _AES_256_SIV, _HMAC, _AES_256)
    info = _LABEL + (b"initiator\0" if is_initiator else b"target\0") + conversation_id
    material = library.hkdf(session_key, length=sum(lengths), info=info)
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    return DirectionKeys(*(material[end - length : end] for end, length in zip(ends, lengths, strict=True)))


KEY_BYTES: Final = 32
"""The length of a master key and of the service master key."""

_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_PASSWORD_PURPOSE: Final = b"ssbroker master key by password 1"
_SCRYPT_COST: Final = 1 << 15
_SCRYPT_BLOCK: Final = 8
_SCRYPT_MEMORY: Final = 1 << 26


def new_master_key() -> bytes:
    """Returns 32 random bytes from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def seal_with_key(key: bytes, data: bytes, *, purpose: bytes) -> bytes:
    """Encrypts and authenticates (seals) data with AES-256-GCM. Only the same key and purpose decrypt the data. Returns a random nonce and the sealed data.

    Examples:
        >>> sealed = seal_with_key(bytes(32), b"secret", purpose=b"of Ann")
        >>> open_with_key(bytes(32), sealed, purpose=b"of Ann"), open_with_key(bytes(32), sealed, purpose=b"of Bob")
        (b'secret', None)
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + load_cryptography().gcm(key).encrypt(nonce, data, purpose)


def open_with_key(key: bytes, sealed: bytes, *, purpose: bytes) -> bytes | None:
    """Decrypts data that `seal_with_key` encrypted; returns None if the key, the purpose or the data differs."""
    library = load_cryptography()
    try:
        return library.gcm(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose)
    except (library.invalid_tag, ValueError):
        return None


def seal_with_password(key: bytes, password: str) -> bytes:
    """Encrypts a key with a password, by scrypt and AES-256-GCM. Returns a random salt and the sealed key.

    Raises:
        OptionError: The password is empty.

    Examples:
        >>> sealed = seal_with_password(bytes(32), "long and secret")
        >>> open_with_password(sealed, "long and secret") == bytes(32), open_with_password(sealed, "guessed")
        (True, None)
    """
    if not password:
        raise OptionError("password: expected at least one character")
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + seal_with_key(_stretch_password(password, salt), key, purpose=_PASSWORD_PURPOSE)


def open_with_password(sealed: bytes, password: str) -> bytes | None:
    """Decrypts a key that `seal_with_password` encrypted; returns None if the password is wrong or the data was modified."""
    salt, rest = sealed[:_SALT_BYTES], sealed[_SALT_BYTES:]
    return open_with_key(_stretch_password(password, salt), rest, purpose=_PASSWORD_PURPOSE)


def _stretch_password(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=_SCRYPT_COST, r=_SCRYPT_BLOCK, p=1, maxmem=_SCRYPT_MEMORY, dklen=KEY_BYTES
    )
