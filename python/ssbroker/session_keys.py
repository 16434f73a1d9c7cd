"""Session keys: where those of a batch come from."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TypeAlias

from ssbroker import _core, guids
from ssbroker.exceptions import InvalidGuidError, OptionError

# One mapping for each kind of key: type checkers do not take a dict of one for a mapping of all.
SessionKeys: TypeAlias = (
    str
    | Mapping[uuid.UUID, bytes]
    | Mapping[str, bytes]
    | Mapping[bytes, bytes]
    | Mapping[uuid.UUID | str | bytes, bytes]
)
"""The name of a binary column with the key of each row (null is none), or the keys by conversation id; of 16, 24 or 32 bytes."""

NAME = "session_keys"


def normal(session_keys: object) -> str | dict[bytes, bytes] | _core.SessionKeys | None:
    """Session keys in one form, which pickles: the name of the column, or keys by the 16 bytes of the id.

    Args:
        session_keys: What the user gave; what is ready for the native module stays so.

    Returns:
        The same, with every id as bytes.

    Raises:
        OptionError: It is neither, an id is no GUID or occurs twice, or a key is no bytes.

    Examples:
        >>> normal({"00000000-0000-0000-0000-000000000001": bytes(16)}) == {(1).to_bytes(16, "big"): bytes(16)}
        True
    """
    if session_keys is None or isinstance(session_keys, str | _core.SessionKeys):
        return session_keys
    if not isinstance(session_keys, Mapping):
        got = type(session_keys).__qualname__
        raise OptionError(f"{NAME}: expected the name of a column or a mapping by conversation id; got {got}")
    keys: dict[bytes, bytes] = {}
    for conversation, key in session_keys.items():
        try:
            id_bytes = guids.as_bytes(conversation, name=NAME)
        except InvalidGuidError as error:
            raise OptionError(str(error)) from error
        if not isinstance(key, bytes):
            raise OptionError(
                f"{NAME}: the key of {uuid.UUID(bytes=id_bytes)} is no bytes but {type(key).__qualname__}"
            )
        if keys.setdefault(id_bytes, key) != key:
            raise OptionError(f"{NAME}: {uuid.UUID(bytes=id_bytes)} has two keys")
    return keys


def native(session_keys: object) -> str | _core.SessionKeys | None:
    """Session keys as the native module takes them.

    Args:
        session_keys: What the user gave, or what is ready.

    Returns:
        The name of the column, or the keys made ready.

    Raises:
        OptionError: It is neither, or a key is not 16, 24 or 32 bytes long.

    Examples:
        >>> native("session_key")
        'session_key'
    """
    keys = normal(session_keys)
    return _core.SessionKeys(list(keys.items())) if isinstance(keys, dict) else keys
