"""The forms of CREATE CERTIFICATE, and the statements that follow it."""

from __future__ import annotations

import warnings

import pytest

from ssbroker import ddl
from tests.ddl.scripts import read, refused

KEYED = "CREATE DATABASE D USE D CREATE USER U WITHOUT LOGIN CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'Pass1!word'"
UNUSABLE = (
    "skipped the private key: keys that a password encrypts are not supported, because Service Broker cannot use them"
)


def noted(*lines: str) -> ddl.ScriptTables:
    """Reads a script that may have notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(*lines)


@pytest.mark.parametrize(
    ("rest", "has_key", "notes"),
    [
        ("FROM ASSEMBLY a1", False, []),
        ("FROM EXECUTABLE FILE = 'c.dll'", False, []),
        ("FROM EXECUTABLE FILE = 'c.dll' WITH PRIVATE KEY (FILE = 'k', DECRYPTION BY PASSWORD = 'p')", True, []),
        ("FROM FILE = 'c.pfx' WITH FORMAT = 'PFX', PRIVATE KEY (FILE = 'k', DECRYPTION BY PASSWORD = 'p')", True, []),
        ("FROM BINARY = 0x308201", False, []),
        ("FROM BINARY = 0x308201F WITH PRIVATE KEY (BINARY = 0x30, DECRYPTION BY PASSWORD = 'p')", True, []),
        ("FROM FILE = 'c' WITH PRIVATE KEY (FILE = 'k', ENCRYPTION BY PASSWORD = 'p')", False, [UNUSABLE]),
        ("ENCRYPTION BY PASSWORD = 'xyz!!123A' WITH SUBJECT = 'x', EXPIRY_DATE = '12/31/2030'", False, [UNUSABLE]),
        ("WITH SUBJECT = 'x' ACTIVE FOR BEGIN_DIALOG = OFF", True, []),
    ],
)
def test_every_form_makes_a_certificate_of_its_owner(rest: str, has_key: bool, notes: list[str]) -> None:  # noqa: FBT001
    script = noted(KEYED, f"CREATE CERTIFICATE C AUTHORIZATION U {rest}", "CREATE QUEUE Q")
    assert script.model is not None
    certificate = script.model.certificates["D", "C"]
    assert (certificate.owner, certificate.has_key) == ("U", has_key)
    assert [note.text for note in script.notes] == notes


@pytest.mark.parametrize(
    ("key", "has_key"),
    [
        ("FILE = 'k', DECRYPTION BY PASSWORD = 'p'", True),
        ("BINARY = 0x30", True),
        ("DECRYPTION BY PASSWORD = 'p'", True),
        ("DECRYPTION BY PASSWORD = 'p', ENCRYPTION BY PASSWORD = 'q'", False),
    ],
)
def test_what_follows_is_accepted(key: str, has_key: bool) -> None:  # noqa: FBT001
    script = noted(
        KEYED,
        "CREATE CERTIFICATE C FROM ASSEMBLY a",
        "ALTER CERTIFICATE C WITH ACTIVE FOR BEGIN_DIALOG = OFF",
        f"ALTER CERTIFICATE C WITH PRIVATE KEY ({key})",
        "BACKUP CERTIFICATE C TO FILE = 'c' WITH PRIVATE KEY (FILE = 'k', ENCRYPTION BY PASSWORD = 'p', DECRYPTION BY PASSWORD = 'q')",
    )
    assert script.model is not None
    assert script.model.certificates["D", "C"].has_key is has_key


def test_a_key_with_a_password_of_its_own_needs_no_master_key() -> None:
    created = "CREATE DATABASE D USE D CREATE CERTIFICATE C"
    assert noted(f"{created} ENCRYPTION BY PASSWORD = 'p' WITH SUBJECT = 's'").notes[0].text == UNUSABLE
    assert refused(f"{created} WITH SUBJECT = 's'").number == 15581


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("FROM BINARY = 'x'", "expected a binary constant, 0x..."),
        ("FROM BINARY = 0xG1", "expected a binary constant, 0x..."),
        ("FROM BINARY = 0x30 WITH PRIVATE KEY (DECRYPTION BY PASSWORD = 'p')", "expected FILE = '...'"),
        ("FROM EXECUTABLE = 'x'", "expected FILE"),
        ("ENCRYPTION BY PASSWORD = 'p'", "expected WITH"),
    ],
)
def test_other_forms_are_syntax_errors(rest: str, reason: str) -> None:
    error = refused(KEYED, f"CREATE CERTIFICATE C {rest}")
    assert error.number == 102
    assert reason in str(error)


def test_a_private_key_is_not_shown() -> None:
    key = "0x" + "5EC4E7" * 12
    text = f"CREATE CERTIFICATE C FROM BINARY = {key} WITH PRIVATE KEY (BINARY = {key}"
    assert "5EC4E7" not in str(refused(KEYED, f"{text}, DECRYPTION {key}"))
    assert "5EC4E7" not in str(noted(KEYED, f"IF @a = 1 {text})").notes)


@pytest.mark.parametrize(
    ("statement", "owned"),
    [
        ("CREATE QUEUE Q CREATE SERVICE S AUTHORIZATION U ON QUEUE Q", "owns the service 'S'"),
        ("CREATE CERTIFICATE C AUTHORIZATION U WITH SUBJECT = 'x'", "owns the certificate 'C'"),
        (
            "CREATE REMOTE SERVICE BINDING B TO SERVICE 'S' WITH USER = U",
            "is the user of the remote service binding 'B'",
        ),
    ],
)
def test_a_user_that_owns_an_object_is_not_dropped(statement: str, owned: str) -> None:
    error = refused(KEYED, statement, "DROP USER U")
    text = f"the user 'U' {owned}; first assign this object to another user, or drop it"
    assert (error.number, text in str(error)) == (15138, True)
