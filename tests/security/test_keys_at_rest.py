"""Keys that are kept open under their own key or password, for their own purpose, and no bit of them may change."""

from __future__ import annotations

import pytest

from ssbroker.exceptions import OptionError
from ssbroker.security.keys import new_master_key, opened_by_password, opened_under, sealed_by_password, sealed_under

KEY = bytes(range(32))


def test_every_single_bit_flip_is_refused() -> None:
    sealed = sealed_under(KEY, b"private", purpose=b"of Shop")
    number = int.from_bytes(sealed)
    for bit in range(8 * len(sealed)):
        changed = (number ^ 1 << bit).to_bytes(len(sealed))
        assert opened_under(KEY, changed, purpose=b"of Shop") is None
    assert opened_under(KEY, sealed, purpose=b"of Bank") is None
    assert opened_under(new_master_key(), sealed, purpose=b"of Shop") is None
    assert all(opened_under(KEY, sealed[:length], purpose=b"of Shop") is None for length in range(len(sealed)))
    assert opened_under(KEY, sealed, purpose=b"of Shop") == b"private"


def test_a_password_opens_what_it_has_sealed_and_no_other_does() -> None:
    sealed = sealed_by_password(KEY, "long and secret")
    assert opened_by_password(sealed, "long and secret") == KEY
    assert opened_by_password(sealed, "Long and secret") is None
    assert opened_by_password(sealed, "") is None
    assert sealed != sealed_by_password(KEY, "long and secret")
    with pytest.raises(OptionError, match="at least one character"):
        sealed_by_password(KEY, "")
