"""P22: an attacker who has all sent rows but no key gets none accepted; `tests.protocol.forged_rows` tries a million."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ssbroker._well_known import END_DIALOG, ERROR
from ssbroker.protocol.engine import DialogEngine
from tests.protocol.forged_rows import DIALOGS, FORGERIES, MESSAGES, NOW, attack, recorded
from tests.protocol.pair import KEY, Row, pair
from tests.protocol.test_dialog_security import altered
from tests.protocol.test_receiver import with_new_header_digest

ROWS = 20_000


@pytest.mark.rule("P22")
@pytest.mark.threat("T1", "T2", "T11", "T15")
def test_no_forged_row_is_accepted_or_answered() -> None:
    """All honest rows of both dialogs arrive afterwards."""
    tried, came = attack(ROWS)
    assert tried.keys() == FORGERIES.keys()
    assert came == 2 * (MESSAGES + 1) + 1


KINDS: dict[str, Callable[[Row], bool]] = {
    "a fragment that others follow": lambda row: row["fragment_number"] == 0 and row["fragment_count"] > 1,
    "a last fragment": lambda row: row["fragment_number"] == row["fragment_count"] - 1 > 0,
    "a message in one fragment": lambda row: row["is_sequenced"] and row["fragment_count"] == 1,
    "an end": lambda row: row["message_type_name"] == END_DIALOG,
    "an error of the application": lambda row: row["message_type_name"] == ERROR,
    "an acknowledgement": lambda row: not row["is_sequenced"],
}


@pytest.mark.rule("P22")
@pytest.mark.threat("T2")
@pytest.mark.parametrize("kind", KINDS)
def test_every_single_bit_flip_of_every_kind_of_row_is_refused(kind: str) -> None:
    """And each change of a field, in a secured dialog; `test_dialog_security` covers errors of the broker."""
    both = pair(DialogEngine, dialog={"session_key": KEY}, max_fragment_bytes=16)
    rows = recorded(both)
    both.b.rows(NOW)
    row = next(row for row in rows if KINDS[kind](row))
    before = [both.b.queue((conversation, False)) for conversation in DIALOGS]
    for altered_row in altered(row):
        assert both.b.receive_and_commit([altered_row], NOW).is_empty, {
            name: value for name, value in altered_row.items() if value != row[name]
        }
    assert both.b.rows(NOW) == []
    assert [both.b.queue((conversation, False)) for conversation in DIALOGS] == before
    assert not both.b.receive_and_commit([row], NOW).is_empty


@pytest.mark.threat("T2")
def test_an_acknowledgement_has_no_body() -> None:
    """Its signature covers no body, so it must have none, in an unsecured dialog too."""
    for key in (KEY, None):
        both = pair(DialogEngine, dialog={"session_key": key}, max_fragment_bytes=16)
        both.a.send(both.outgoing, b"first")
        both.b.receive_and_commit(both.a.rows())
        (row,) = both.b.rows()
        hidden = {**row, "message_body": b"hidden"}
        assert both.a.receive_and_commit([hidden if key else with_new_header_digest(hidden)]).is_empty
        assert not both.a.receive_and_commit([row]).is_empty
