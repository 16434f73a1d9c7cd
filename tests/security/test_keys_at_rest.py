"""Stored keys are encrypted with a key or password, for one purpose, and any changed bit is detected."""

from __future__ import annotations

import pytest

from ssbroker.exceptions import OptionError
from ssbroker.security.keys import new_master_key, open_with_key, open_with_password, seal_with_key, seal_with_password

KEY = bytes(range(32))


def test_every_single_bit_flip_is_refused() -> None:
    sealed = seal_with_key(KEY, b"private", purpose=b"of Shop")
    number = int.from_bytes(sealed)
    for bit in range(8 * len(sealed)):
        changed = (number ^ 1 << bit).to_bytes(len(sealed))
        assert open_with_key(KEY, changed, purpose=b"of Shop") is None
    assert open_with_key(KEY, sealed, purpose=b"of Bank") is None
    assert open_with_key(new_master_key(), sealed, purpose=b"of Shop") is None
    assert all(open_with_key(KEY, sealed[:length], purpose=b"of Shop") is None for length in range(len(sealed)))
    assert open_with_key(KEY, sealed, purpose=b"of Shop") == b"private"


def test_only_the_same_password_decrypts() -> None:
    sealed = seal_with_password(KEY, "long and secret")
    assert open_with_password(sealed, "long and secret") == KEY
    assert open_with_password(sealed, "Long and secret") is None
    assert open_with_password(sealed, "") is None
    assert sealed != seal_with_password(KEY, "long and secret")
    with pytest.raises(OptionError, match="at least one character"):
        seal_with_password(KEY, "")
