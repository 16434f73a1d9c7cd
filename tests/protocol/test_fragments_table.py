"""Bodies of fragments in a table equal those of the input, whatever their lengths."""

from __future__ import annotations

import pytest

from ssbroker.protocol.storage import STORED_FRAGMENTS, fragments_table

BEFORE = (bytes(16), True, 3)
BEHIND = (None, None, "DEFAULT", None, False, False)


@pytest.mark.parametrize(
    "bodies",
    [
        pytest.param([b"", b"short", bytes(range(13)), b"x" * 4096], id="most of them short"),
        pytest.param([b"", b"twelve bytes", b"thirteen byte", bytes(range(256)) * 1024], id="one of them long"),
        pytest.param([bytes([number % 256]) * 32768 for number in range(300)], id="many long ones"),
    ],
)
def test_bodies_are_unchanged(bodies: list[bytes]) -> None:
    table = fragments_table([(*BEFORE, number, len(bodies), body, *BEHIND) for number, body in enumerate(bodies)])
    table.validate(full=True)
    assert table.schema == STORED_FRAGMENTS
    assert table["message_body"].to_pylist() == bodies
    assert table["fragment_number"].to_pylist() == list(range(len(bodies)))
