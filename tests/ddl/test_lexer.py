"""Encodings, line ends, comments, quotes and batches of scripts."""

from __future__ import annotations

import codecs

import pytest

from ssbroker import ddl
from ssbroker.exceptions import DdlError
from tests.ddl.scripts import NOW, names, read, refused, routes, services, skipped

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
def test_encoding_is_utf_8_or_given_by_the_byte_order_mark(data: bytes) -> None:
    assert ddl.decode(data) == "USE Größe\r\n"


def test_empty_file_is_an_empty_script() -> None:
    assert ddl.decode(b"") == ""
    assert names(skipped()[0], "msdb") == ["AutoCreatedLocal"]


def test_code_pages_are_not_guessed() -> None:
    with pytest.raises(DdlError, match=r"^old\.sql:2: not UTF-8 \(byte 0xf6\); save the script as UTF-8") as caught:
        ddl.decode("USE a\r\nUSE Größe".encode("cp1252"), file="old.sql")
    assert (caught.value.file, caught.value.line) == ("old.sql", 2)


def test_truncated_utf_16_file_is_refused() -> None:
    with pytest.raises(DdlError, match="not UTF-16-LE"):
        ddl.decode("USE Sales".encode("utf-16")[:-1])


def test_unpaired_surrogate_is_refused() -> None:
    assert refused("USE Sales", "USE [\ud800]").line == 2


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_all_kinds_of_line_ends_count(newline: str) -> None:
    with pytest.raises(DdlError, match=r"^a\.sql:5: "):
        ddl.read(newline.join(["USE Sales", "GO", "/* a", "b */", "DROP ROUTE X"]), now=NOW, file="a.sql")


def test_byte_order_mark_in_the_text_is_ignored() -> None:
    assert names(ddl.read("\ufeffUSE Sales; DROP ROUTE AutoCreatedLocal", now=NOW)) == []


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
def test_names(written: str, name: str) -> None:
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
def test_strings(written: str, text: str) -> None:
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
def test_comments_are_ignored(comment: str) -> None:
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
def test_unclosed_quote_or_comment_is_refused_where_it_opens(text: str, number: int, line: int) -> None:
    error = refused(text)
    assert (error.number, error.line) == (number, line)
    assert str(error).startswith(f"routes.sql:{line}: error {number}: ")
    assert "unclosed " in str(error)


@pytest.mark.parametrize("script", [ROUTE.lower(), ROUTE.upper(), ROUTE.title().replace("Route R", "Route r")])
def test_keywords_are_case_insensitive(script: str) -> None:
    assert [name.upper() for name in names(read("uSe Sales", script))] == ["AUTOCREATEDLOCAL", "R"]


@pytest.mark.parametrize("clause", ["W\u0131TH ADDRESS", "WITH ADDRE\u017fS"])
def test_keywords_consist_of_ascii_letters(clause: str) -> None:
    """Unicode upper case would turn a dotless i into I, and a long s into S."""
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
def test_text_that_resembles_go_is_not_a_separator(line: str) -> None:
    script, warnings = skipped("USE Sales", "GO", "CREATE PROCEDURE p AS", line, ROUTE)
    assert names(script) == ["AutoCreatedLocal"]
    assert len(warnings) == 1


def test_go_count_repeats_the_batch() -> None:
    assert names(read("USE Sales", "GO", ROUTE, "GO 0")) == ["AutoCreatedLocal"]
    assert names(read("USE Sales", "GO", ROUTE, "GO 1")) == ["AutoCreatedLocal", "R"]
    error = refused("USE Sales", "GO", ROUTE, "GO 2")
    assert error.line == 3
    assert "the route 'R' already exists" in str(error)


def test_batch_with_a_huge_go_count_warns_once_and_ends_quickly() -> None:
    script, warnings = skipped(
        "USE Sales", "GO", "PRINT 'x'", "ALTER ROUTE AutoCreatedLocal WITH LIFETIME = 5", "GO 2000000000"
    )
    assert names(script) == ["AutoCreatedLocal"]
    assert len(warnings) == 1


def test_several_statements_on_a_line_with_and_without_semicolons() -> None:
    script = read(
        ";;USE Sales;CREATE QUEUE Q CREATE SERVICE [//A] ON QUEUE Q;CREATE SERVICE [//B] ON QUEUE [dbo].[Q]" + ROUTE
    )
    assert services(script) == [("Sales", "//A"), ("Sales", "//B")]
    assert names(script) == ["AutoCreatedLocal", "R"]


def test_unclosed_string_of_a_megabyte_is_refused_quickly() -> None:
    assert refused("USE Sales", "PRINT '" + "a''" * 500_000).number == 105


def test_go_count_that_is_too_large_is_refused() -> None:
    error = refused("USE Sales", "GO " + "1" * 5000)
    assert str(error) == "routes.sql:2: the count of GO is too large: 1111111111...; it may have at most 10 digits"


def test_leading_zeros_of_a_go_count_are_ignored() -> None:
    assert names(read("USE Sales", ROUTE, "GO " + "0" * 5000 + "1")) == ["AutoCreatedLocal", "R"]


@pytest.mark.parametrize(
    "line", ["GO" + " " * 300_000 + "x", " " * 100_000 + "GO " * 100_000, "GO " + "1" * 300_000 + " x"]
)
def test_whitespace_around_go_is_scanned_once(line: str) -> None:
    """A backtracking pattern would take cubic time for the spaces after GO."""
    script, _ = skipped("USE Sales", "GO", "EXEC p", line, ROUTE)
    assert names(script) == ["AutoCreatedLocal", "R"]
