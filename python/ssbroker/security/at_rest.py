"""Keys at rest: a master key seals private keys, and is sealed itself under a password and under the key of the instance."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from ssbroker.exceptions import OptionError
from ssbroker.security.ciphers import cryptography_of

KEY_BYTES: Final = 32
"""The length of a master key, of an instance's key and of a session key."""

_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_PASSWORD_PURPOSE: Final = b"ssbroker master key by password 1"
_SCRYPT_COST: Final = 1 << 15
_SCRYPT_BLOCK: Final = 8
_SCRYPT_MEMORY: Final = 1 << 26


def new_key() -> bytes:
    """A key, from the operating system.

    Returns:
        32 bytes.

    Examples:
        >>> len(new_key()), new_key() == new_key()
        (32, False)
    """
    return secrets.token_bytes(KEY_BYTES)


def sealed_under(key: bytes, data: bytes, *, purpose: bytes) -> bytes:
    """Seals data by AES-256-GCM.

    Args:
        key: 32 bytes.
        data: What is to be kept.
        purpose: What it is, and whose; it opens as nothing else.

    Returns:
        A random nonce and the sealed data.

    Examples:
        >>> sealed = sealed_under(bytes(32), b"secret", purpose=b"of Ann")
        >>> opened_under(bytes(32), sealed, purpose=b"of Ann"), opened_under(bytes(32), sealed, purpose=b"of Bob")
        (b'secret', None)
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + cryptography_of().gcm(key).encrypt(nonce, data, purpose)


def opened_under(key: bytes, sealed: bytes, *, purpose: bytes) -> bytes | None:
    """Opens what `sealed_under` made.

    Args:
        key: The same key.
        sealed: What was kept.
        purpose: The same purpose.

    Returns:
        The data; None where key, purpose or a bit of it is another.

    Examples:
        >>> opened_under(bytes(32), b"", purpose=b"") is None
        True
    """
    library = cryptography_of()
    try:
        return library.gcm(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose)
    except (library.invalid, ValueError):
        return None


def sealed_by_password(key: bytes, password: str) -> bytes:
    """Seals a key under a password, by scrypt and AES-256-GCM.

    Args:
        key: The key.
        password: The password, not empty.

    Returns:
        A random salt and the sealed key.

    Raises:
        OptionError: The password is empty.

    Examples:
        >>> sealed = sealed_by_password(bytes(32), "long and secret")
        >>> opened_by_password(sealed, "long and secret") == bytes(32), opened_by_password(sealed, "guessed")
        (True, None)
    """
    if not password:
        raise OptionError("password: expected at least one character")
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + sealed_under(_stretched(password, salt), key, purpose=_PASSWORD_PURPOSE)


def opened_by_password(sealed: bytes, password: str) -> bytes | None:
    """Opens what `sealed_by_password` made.

    Args:
        sealed: What was kept.
        password: The password.

    Returns:
        The key; None where the password is another.

    Examples:
        >>> opened_by_password(bytes(76), "guessed") is None
        True
    """
    salt, rest = sealed[:_SALT_BYTES], sealed[_SALT_BYTES:]
    return opened_under(_stretched(password, salt), rest, purpose=_PASSWORD_PURPOSE)


def _stretched(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=_SCRYPT_COST, r=_SCRYPT_BLOCK, p=1, maxmem=_SCRYPT_MEMORY, dklen=KEY_BYTES
    )
