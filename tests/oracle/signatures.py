"""P21, P23: the signatures of messages and of fragments, with and without a session key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from uuid import UUID

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

MESSAGE = 0
FRAGMENT = 1
TOP_BIT = 1 << 31


def md5(data: bytes) -> bytes:
    """Returns the digest on which all signatures are based."""
    return hashlib.md5(data, usedforsecurity=False).digest()


@cache
def _encryptor(key: bytes) -> Callable[[bytes], bytes]:
    # In this mode, blocks are encrypted separately, so that one encryptor can be reused.
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update


def encrypted(key: bytes, block: bytes) -> bytes:
    """P22: `E`, AES (128, 192 or 256 bits, by the length of the key) of one block."""
    return _encryptor(key)(block)


def xor(one: bytes, other: bytes) -> bytes:
    """P22: `^`."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def header(kind: int, number: int, count: int, *, is_initiator: bool, sequence: int) -> bytes:
    """P22: `H(kind, number, count)`, 16 bytes, big-endian."""
    return (
        (number + kind * TOP_BIT).to_bytes(4, "big")
        + (count + is_initiator * TOP_BIT).to_bytes(4, "big")
        + sequence.to_bytes(8, "big")
    )


def message_signature(
    body: bytes, *, conversation_id: UUID, is_initiator: bool, sequence: int, key: bytes | None
) -> bytes:
    """P21: the signature of the whole body."""
    if key is None:
        return md5(body)
    place = encrypted(key, conversation_id.bytes)
    place = encrypted(key, xor(header(MESSAGE, 0, 0, is_initiator=is_initiator, sequence=sequence), place))
    return encrypted(key, xor(md5(body), place))


def fragment_signature(
    part: bytes,
    *,
    conversation_id: UUID,
    is_initiator: bool,
    sequence: int,
    number: int,
    count: int,
    signature: bytes,
    key: bytes | None,
) -> bytes:
    """P23: the signature of one part; `signature` is that of its message, and is used only with a key."""
    if key is None:
        return md5(part)
    place = encrypted(key, conversation_id.bytes)
    place = encrypted(key, xor(header(FRAGMENT, number, count, is_initiator=is_initiator, sequence=sequence), place))
    return encrypted(key, xor(md5(part), encrypted(key, xor(signature, place))))
