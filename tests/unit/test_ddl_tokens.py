"""What a script is made of: encodings, line ends, comments, quotes, batches."""

from __future__ import annotations

import codecs

import pytest

from ssbroker import ddl
from ssbroker.exceptions import DdlError
from tests.unit.scripted import NOW, names, read, refused, routes, services, skipped

ROUTE = "CREATE ROUTE R WITH ADDRESS = 'LOCAL'"


@pytest.mark.parametrize(
    "data",
    [
        "USE Größe\r\n".encode(),
        codecs.BOM_UTF8 + "USE Größe\r\n".encode(),
        codecs.BOM_UTF16_LE + "USE Größe\r\n".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "USE Größe\r\n".encode("utf-16-be"),
        codecs.BOM_UTF32_LE + "USE Größe\r\n".encode("utf-32-le"),
        codecs.BOM_UTF32_BE + "USE Größe\r\n".encode("utf-32-be"),
        "USE Größe\r\n".encode("utf-16-le"),
        "USE Größe\r\n".encode("utf-16-be"),
    ],
)
def test_a_file_is_utf_8_or_what_its_byte_order_mark_says(data: bytes) -> None:
    assert ddl.decode(data) == "USE Größe\r\n"


def test_an_empty_file_is_an_empty_script() -> None:
    assert ddl.decode(b"") == ""
    assert names(read(), "msdb") == ["AutoCreatedLocal"]


def test_a_code_page_is_not_guessed() -> None:
    with pytest.raises(DdlError, match=r"^old\.sql:2: not UTF-8 \(byte 0xf6\); save the script as UTF-8") as caught:
        ddl.decode("USE a\r\nUSE Größe".encode("cp1252"), file="old.sql")
    assert (caught.value.file, caught.value.line) == ("old.sql", 2)


def test_a_truncated_utf_16_file_is_refused() -> None:
    with pytest.raises(DdlError, match="not UTF-16-LE"):
        ddl.decode("USE Sales".encode("utf-16")[:-1])


def test_half_a_surrogate_pair_is_refused() -> None:
    assert refused("USE Sales", "USE [\ud800]").line == 2


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_any_line_end_counts_as_one(newline: str) -> None:
    with pytest.raises(DdlError, match=r"^a\.sql:5: "):
        ddl.read(newline.join(["USE Sales", "GO", "/* a", "b */", "DROP ROUTE X"]), now=NOW, file="a.sql")


def test_the_mark_that_a_reader_left_is_no_character() -> None:
    assert names(ddl.read("\ufeffUSE Sales", now=NOW)) == ["AutoCreatedLocal"]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("R", "R"),
        ("#R1_$@", "#R1_$@"),
        ("Größe", "Größe"),
        ("[a]]b]", "a]b"),
        ("[]]]", "]"),
        ('"a""b"', 'a"b'),
        ("[it's]", "it's"),
        ("[GO]", "GO"),
        ("[a\nGO\nb]", "a\nGO\nb"),
        ("[-- no comment]", "-- no comment"),
        ('"/* no comment"', "/* no comment"),
        ("[WITH]", "WITH"),
        ("[😀]", "😀"),
    ],
)
def test_a_name(written: str, name: str) -> None:
    script = read("USE Sales", f"CREATE ROUTE {written} WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", name]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("'//A'", "//A"),
        ("N'//A'", "//A"),
        ("n'//A'", "//A"),
        ("N'it''s'", "it's"),
        ("''''", "'"),
        ("'[a]'", "[a]"),
        ("'a\nGO\nUSE x'", "a\nGO\nUSE x"),
        ("'a\\\nb'", "ab"),
        ("'a\\\r\nb'", "ab"),
        ("'a\\\\\n\nb'", "a\\\nb"),
        ("'a\\b\\'", "a\\b\\"),
        ("'-- a /* b'", "-- a /* b"),
        ("'naïve 名前 😀'", "naïve 名前 😀"),
    ],
)
def test_a_string(written: str, text: str) -> None:
    script = read("USE Sales", f"CREATE ROUTE R WITH SERVICE_NAME = {written}, ADDRESS = 'LOCAL'")
    assert routes(script)["R"]["remote_service_name"] == text


@pytest.mark.parametrize(
    "comment",
    [
        "-- a",
        "/* a */",
        "/**/",
        "/* a\n b */",
        "/* a /* b */ CREATE ROUTE X */",
        "/* ' */",
        "/* [ */",
        "/* -- */",
        "-- /*\n",
    ],
)
def test_a_comment_says_nothing(comment: str) -> None:
    script = read("USE Sales", comment, "CREATE", comment, "ROUTE R", comment, "WITH ADDRESS = 'LOCAL'", comment)
    assert names(script) == ["AutoCreatedLocal", "R"]


@pytest.mark.parametrize(
    ("text", "number", "line"),
    [
        ("USE Sales\n\nCREATE ROUTE [X WITH ADDRESS = 'LOCAL'\n", 105, 3),
        ("USE Sales\nCREATE ROUTE X WITH ADDRESS = N'LOCAL\n\n", 105, 2),
        ("USE Sales\nCREATE ROUTE X WITH ADDRESS = 'LOCAL''\n\n", 105, 2),
        ('USE Sales\nCREATE ROUTE "X""\n', 105, 2),
        ("USE Sales\n\n\n/* a /* b */\nDROP ROUTE AutoCreatedLocal", 113, 4),
    ],
)
def test_what_is_not_closed_is_refused_where_it_opens(text: str, number: int, line: int) -> None:
    error = refused(text)
    assert (error.number, error.line) == (number, line)
    assert str(error).startswith(f"routes.sql:{line}: error {number}: ")
    assert "is not closed" in str(error)


@pytest.mark.parametrize("script", [ROUTE.lower(), ROUTE.upper(), ROUTE.title().replace("Route R", "Route r")])
def test_keywords_are_read_in_any_case(script: str) -> None:
    assert [name.upper() for name in names(read("uSe Sales", script))] == ["AUTOCREATEDLOCAL", "R"]


@pytest.mark.parametrize("clause", ["W\u0131TH ADDRESS", "WITH ADDRE\u017fS"])
def test_only_ascii_letters_make_a_keyword(clause: str) -> None:
    """Upper case would make an I of the dotless one, and an S of the long one."""
    assert refused("USE Sales", f"CREATE ROUTE R {clause} = 'LOCAL'").number == 102


@pytest.mark.parametrize(
    "go", ["GO", "go", "  Go  ", "GO -- comment", "GO /* comment */", "GO;", "\tGO", "GO 1", "/* a\n */ -- b\nGO"]
)
def test_go_separates_batches(go: str) -> None:
    script, warnings = skipped(
        "USE Sales", "GO", "CREATE PROCEDURE p AS", "CREATE ROUTE No WITH ADDRESS = 'LOCAL'", go, ROUTE
    )
    assert names(script) == ["AutoCreatedLocal", "R"]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "line",
    ["SELECT 1 GO", "-- GO", "/* \nGO\n */", "SELECT '\nGO\n'", "SELECT [\nGO\n]", "EXEC GO", "GO_ON", "GO away"],
)
def test_what_only_looks_like_go_separates_nothing(line: str) -> None:
    script, warnings = skipped("USE Sales", "GO", "CREATE PROCEDURE p AS", line, ROUTE)
    assert names(script) == ["AutoCreatedLocal"]
    assert len(warnings) == 1


def test_a_batch_runs_as_often_as_its_go_says() -> None:
    assert names(read("USE Sales", "GO", ROUTE, "GO 0")) == ["AutoCreatedLocal"]
    assert names(read("USE Sales", "GO", ROUTE, "GO 1")) == ["AutoCreatedLocal", "R"]
    error = refused("USE Sales", "GO", ROUTE, "GO 2")
    assert error.line == 3
    assert "has a route of this name" in str(error)


def test_a_batch_that_runs_very_often_warns_once_and_ends_soon() -> None:
    script, warnings = skipped(
        "USE Sales", "GO", "PRINT 'x'", "ALTER ROUTE AutoCreatedLocal WITH LIFETIME = 5", "GO 2000000000"
    )
    assert names(script) == ["AutoCreatedLocal"]
    assert len(warnings) == 1


def test_statements_stand_on_one_line_with_semicolons_or_without() -> None:
    script = read(
        ";;USE Sales;CREATE QUEUE Q CREATE SERVICE [//A] ON QUEUE Q;CREATE SERVICE [//B] ON QUEUE [dbo].[Q]" + ROUTE
    )
    assert services(script) == [("Sales", "//A"), ("Sales", "//B")]
    assert names(script) == ["AutoCreatedLocal", "R"]


def test_an_unclosed_string_of_a_megabyte_is_refused_at_once() -> None:
    assert refused("USE Sales", "PRINT '" + "a''" * 500_000).number == 105


def test_a_batch_that_runs_too_often_to_be_a_number_is_refused() -> None:
    error = refused("USE Sales", "GO " + "1" * 5000)
    assert str(error) == "routes.sql:2: a batch cannot run 1111111111... times"


def test_zeros_before_the_number_of_a_go_are_nothing() -> None:
    assert names(read("USE Sales", ROUTE, "GO " + "0" * 5000 + "1")) == ["AutoCreatedLocal", "R"]


@pytest.mark.parametrize(
    "line", ["GO" + " " * 300_000 + "x", " " * 100_000 + "GO " * 100_000, "GO " + "1" * 300_000 + " x"]
)
def test_white_space_around_go_is_read_once(line: str) -> None:
    """Twice the blanks behind a GO took eight times as long, since each way to divide them was tried."""
    script, _ = skipped("USE Sales", "GO", "EXEC p", line, ROUTE)
    assert names(script) == ["AutoCreatedLocal", "R"]
