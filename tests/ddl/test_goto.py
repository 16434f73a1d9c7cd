"""GOTO jumps to a label of its batch, and RETURN ends it, as in SQL Server."""

from __future__ import annotations

import pytest

from ssbroker.exceptions import DdlWarning
from tests.ddl.scripts import names, read, refused, skipped

AFTER = "CREATE ROUTE After WITH ADDRESS = 'LOCAL'"
ROUTE = "CREATE ROUTE R WITH ADDRESS = 'LOCAL'"


@pytest.mark.parametrize(
    "lines",
    [
        ["GOTO Done", ROUTE, "Done:", AFTER],
        ["GOTO done;", ROUTE, "[Done]:", AFTER],
        [f"GOTO Done {ROUTE} Done: {AFTER}"],
        ["IF EXISTS (SELECT * FROM sys.routes WHERE name = N'AutoCreatedLocal') GOTO Done", ROUTE, "Done:", AFTER],
        ["IF 1 = 1 BEGIN", "GOTO Done", ROUTE, "END", ROUTE, "Done: PRINT 'x'", AFTER],
        ["BEGIN", "IF 1 = 1 GOTO Inner", ROUTE, "Inner:", "END", AFTER],
        ["BEGIN TRY", "GOTO Done", "END TRY", "BEGIN CATCH", ROUTE, "END CATCH", ROUTE, "Done:", AFTER],
        ["GOTO Done", "RETURN", ROUTE, "Done:", AFTER],
        ["GOTO Done", "PRINT 'x'", "Done:", AFTER],
        ["GOTO Done", "ALTER DATABASE Sales SET RECOVERY FULL", "Done:", AFTER],
        ["GOTO Done", "ALTER QUEUE Q REBUILD", "Done:", AFTER],
        [f"EXEC ('GOTO Done {ROUTE.replace(chr(39), chr(39) * 2)} Done: PRINT 1')", AFTER],
        ["GOTO Second", "First:", AFTER, "RETURN", "Second:", "GOTO First"],
        ["GOTO Second", "First:", AFTER, "GOTO Done", "Second:", "GOTO First", "Done:"],
    ],
)
@pytest.mark.filterwarnings("ignore::ssbroker.exceptions.DdlWarning")
def test_goto_continues_at_its_label(lines: list[str]) -> None:
    assert names(read("USE Sales", *lines)) == ["AutoCreatedLocal", "After"]


def test_a_label_alone_does_nothing() -> None:
    script = read("USE Sales", ROUTE, "Done:")
    assert (names(script), script.notes) == (["AutoCreatedLocal", "R"], ())


def test_a_label_ends_at_its_batch() -> None:
    error = refused("USE Sales", "GOTO Done", "GO", "Done:", ROUTE)
    assert (error.line, error.number) == (2, 133)
    assert "GOTO Done: error 133: the label Done does not exist in this batch" in str(error)


def test_a_jump_into_a_block_is_refused() -> None:
    error = refused("USE Sales", "GOTO Inner", ROUTE, "BEGIN", "Inner:", "END")
    assert error.line == 2
    assert "the label Inner is within a block that does not contain the GOTO; move it out of the block" in str(error)


def test_jumps_are_limited() -> None:
    error = refused("USE Sales", "Again:", "GOTO Again")
    assert error.line == 3
    assert "this batch executed GOTO more than 1,000 times, which is the limit; check it for an endless loop" in str(
        error
    )


def test_an_undecided_goto_is_not_executed() -> None:
    script, messages = skipped("USE Sales", "IF @a = 1 GOTO Done", ROUTE, "Done:", AFTER)
    assert names(script) == ["AutoCreatedLocal", "R", "After"]
    why = "not executed, although it contains GOTO: its condition cannot be evaluated from the script"
    assert messages == [f"routes.sql:2: IF @a = 1 GOTO Done: {why}"]
    assert script.notes[0].is_problem


def test_an_undecided_return_is_not_executed() -> None:
    script, messages = skipped("USE Sales", "IF @a = 1 BEGIN PRINT 'x' RETURN END", ROUTE)
    assert names(script) == ["AutoCreatedLocal", "R"]
    why = "not executed, although it contains RETURN: its condition cannot be evaluated from the script"
    assert messages == [f"routes.sql:2: IF @a = 1 BEGIN PRINT '...' RETURN END: {why}"]
    assert script.notes[0].is_problem


def test_an_undecided_return_after_all_other_statements_is_no_problem() -> None:
    script, _ = skipped(f"USE Sales {ROUTE} IF @a = 1 RETURN PRINT 'x'", "GO", AFTER)
    assert names(script) == ["AutoCreatedLocal", "R", "After"]
    assert not any(note.is_problem for note in script.notes)


def test_an_undecided_goto_among_other_statements_is_no_problem() -> None:
    script, _ = skipped(ROUTE.join(["USE Sales ", ""]), "GO", "IF @a = 1 GOTO Done", "EXEC p", "Done:")
    assert not any(note.is_problem for note in script.notes)


@pytest.mark.parametrize("leave", ["GOTO Done", "RETURN"])
def test_leaving_catch_handles_the_error(leave: str) -> None:
    with pytest.warns(DdlWarning, match="DROP ROUTE .*; CATCH handled the error"):
        script = read("USE Sales", "BEGIN TRY DROP ROUTE X END TRY", f"BEGIN CATCH {leave} END CATCH", ROUTE, "Done:")
    assert names(script) == ["AutoCreatedLocal"]
