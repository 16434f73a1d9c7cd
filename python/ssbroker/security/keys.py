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
class CryptographyLibrary:
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

    def hkdf(self, key: bytes, *, length: int, info: bytes) -> bytes:
        """HKDF-SHA-256 without salt: the key is random already.

        Args:
            key: What is derived from.
            length: How many bytes are wanted.
            info: What they are for.

        Returns:
            The bytes.

        Examples:
            >>> len(load_cryptography().hkdf(bytes(32), length=48, info=b"example"))
            48
        """
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - the reason is the module's
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - the same

        return HKDF(hashes.SHA256(), length, salt=None, info=info).derive(key)


@cache
def load_cryptography() -> CryptographyLibrary:
    """The library.

    Returns:
        What is used of it.

    Raises:
        MissingDependencyError: It is not installed.

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
        raise MissingDependencyError(
            "secured dialogs need the library cryptography, which is not installed: pip install 'ssbroker[broker]'"
        ) from error

    def encryptor(key: bytes) -> Blocks:
        # ECB is right here: a block at a time is what the signatures are made of, and nothing else is encrypted by it.
        return Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - as said above

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


def derive_keys(session_key: bytes, *, conversation_id: bytes, is_initiator: bool) -> DirectionKeys:
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
        >>> one, other = (derive_keys(bytes(32), conversation_id=bytes(16), is_initiator=side) for side in (True, False))
        >>> len({one.seal, one.header, one.signature, other.seal, other.header, other.signature})
        6
    """
    boolean(is_initiator, name="is_initiator")
    given: object = session_key
    if not isinstance(given, bytes) or len(given) != SESSION_KEY_BYTES:
        raise OptionError(f"session_key: expected {SESSION_KEY_BYTES} bytes; got something else")
    library = load_cryptography()
    lengths = (_AES_256, _AES_256_SIV, _HMAC, _AES_256)
    told = _LABEL + (b"initiator\0" if is_initiator else b"target\0") + conversation_id
    material = library.hkdf(session_key, length=sum(lengths), info=told)
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    return DirectionKeys(*(material[end - length : end] for end, length in zip(ends, lengths, strict=True)))


KEY_BYTES: Final = 32
"""The length of a master key, of an instance's key and of a session key."""

_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_PASSWORD_PURPOSE: Final = b"ssbroker master key by password 1"
_SCRYPT_COST: Final = 1 << 15
_SCRYPT_BLOCK: Final = 8
_SCRYPT_MEMORY: Final = 1 << 26


def new_master_key() -> bytes:
    """A key, from the operating system.

    Returns:
        32 bytes.

    Examples:
        >>> len(new_master_key()), new_master_key() == new_master_key()
        (32, False)
    """
    return secrets.token_bytes(KEY_BYTES)


def seal_with_key(key: bytes, data: bytes, *, purpose: bytes) -> bytes:
    """Seals data by AES-256-GCM.

    Args:
        key: 32 bytes.
        data: What is to be kept.
        purpose: What it is, and whose; it opens as nothing else.

    Returns:
        A random nonce and the sealed data.

    Examples:
        >>> sealed = seal_with_key(bytes(32), b"secret", purpose=b"of Ann")
        >>> open_with_key(bytes(32), sealed, purpose=b"of Ann"), open_with_key(bytes(32), sealed, purpose=b"of Bob")
        (b'secret', None)
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + load_cryptography().gcm(key).encrypt(nonce, data, purpose)


def open_with_key(key: bytes, sealed: bytes, *, purpose: bytes) -> bytes | None:
    """Opens what `sealed_under` made.

    Args:
        key: The same key.
        sealed: What was kept.
        purpose: The same purpose.

    Returns:
        The data; None where key, purpose or a bit of it is another.

    Examples:
        >>> open_with_key(bytes(32), b"", purpose=b"") is None
        True
    """
    library = load_cryptography()
    try:
        return library.gcm(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose)
    except (library.invalid, ValueError):
        return None


def seal_with_password(key: bytes, password: str) -> bytes:
    """Seals a key under a password, by scrypt and AES-256-GCM.

    Args:
        key: The key.
        password: The password, not empty.

    Returns:
        A random salt and the sealed key.

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
    return salt + seal_with_key(_stretched(password, salt), key, purpose=_PASSWORD_PURPOSE)


def open_with_password(sealed: bytes, password: str) -> bytes | None:
    """Opens what `sealed_by_password` made.

    Args:
        sealed: What was kept.
        password: The password.

    Returns:
        The key; None where the password is another.

    Examples:
        >>> open_with_password(bytes(76), "guessed") is None
        True
    """
    salt, rest = sealed[:_SALT_BYTES], sealed[_SALT_BYTES:]
    return open_with_key(_stretched(password, salt), rest, purpose=_PASSWORD_PURPOSE)


def _stretched(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=_SCRYPT_COST, r=_SCRYPT_BLOCK, p=1, maxmem=_SCRYPT_MEMORY, dklen=KEY_BYTES
    )
