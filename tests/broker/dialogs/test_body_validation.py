"""Validation of bodies: empty, or well-formed XML within limits."""

from __future__ import annotations

import encodings

import pytest

from ssbroker.broker.dialogs.body_validation import DEPTH_MAX, find_violation


@pytest.mark.parametrize(
    "body",
    [
        b"<a/>",
        b"<?xml version='1.0' encoding='ISO-8859-1'?><a>\xe4</a>",
        "<a>ä</a>".encode("utf-16"),
        b"<!DOCTYPE a [<!ENTITY b 'text'>]><a>&b;&b;</a>",
        b"<!DOCTYPE a SYSTEM 'http://example.com/a.dtd'><a/>",
        b"<a>" * 1000 + b"</a>" * 1000,
    ],
    ids=lambda body: str(body[:40]),
)
def test_well_formed_xml(body: bytes) -> None:
    assert find_violation("X", body) is None


BILLION = b"<!DOCTYPE a [<!ENTITY b 'bbbbbbbbbb'>%s]><a>&z;</a>" % b"".join(
    b"<!ENTITY %c '%s'>" % (code, b"&%c;" % (code - 1) * 10) for code in range(ord("c"), ord("{"))
)
QUADRATIC = b"<!DOCTYPE a [<!ENTITY b '%s'>]><a>%s</a>" % (b"b" * 100_000, b"&b;" * 100_000)
MANY_DEFAULTS = b"<!DOCTYPE a [<!ATTLIST a %s>]><a>%s</a>" % (
    b" ".join(b"b%d CDATA ''" % number for number in range(2000)),
    b"<a/>" * 20_000,
)
MANY_ATTRIBUTES = b"<!DOCTYPE a [<!ATTLIST a %s>]><a/>" % b" ".join(b"b%d CDATA ''" % number for number in range(4000))
IN_ATTRIBUTE = b"<!DOCTYPE a [<!ENTITY b '%s'>]><a c='%s'/>" % (b"b" * 100_000, b"&b;" * 100_000)


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"text",
        b"<a>",
        b"<a></b>",
        b"<a/><a/>",
        b"<a>&unknown;</a>",
        b"<a>\x00</a>",
        b"<?xml version='1.0' encoding='no-such'?><a/>",
        b"<!DOCTYPE a [<!ENTITY % p '<!ENTITY b \"c\">'> %p;]><a>&b;</a>",
        BILLION,
        QUADRATIC,
        IN_ATTRIBUTE,
        MANY_DEFAULTS,
        MANY_ATTRIBUTES,
    ],
    ids=lambda body: str(body)[:40],
)
def test_xml_that_is_not_well_formed_or_expands_to_too_much(body: bytes | None) -> None:
    assert find_violation("X", body)


def test_a_document_may_declare_its_attributes() -> None:
    assert (
        find_violation("X", b"<!DOCTYPE a [<!ATTLIST a b CDATA 'c' d CDATA #IMPLIED>]><a>%s</a>" % (b"<a/>" * 20_000))
        is None
    )


def nested(depth: int, *, inner: bytes = b"") -> bytes:
    return b"<a>" * depth + inner + b"</a>" * depth


def test_default_values_of_attributes_are_not_repeated_for_each_element() -> None:
    """Decoding the default, 8 MB with its entities, for each of the 100,000 elements would take minutes."""
    body = b"<!DOCTYPE a [<!ENTITY e '%s'><!ATTLIST a b CDATA '%s'>]><r>%s</r>" % (
        b"x" * 5000,
        b"&e;" * 1600,
        b"<a/>" * 100_000,
    )
    assert find_violation("X", body) is None


def test_the_depth_of_a_document_is_limited() -> None:
    """For each open element the parser needs forty times its size in the document."""
    assert find_violation("X", nested(DEPTH_MAX)) is None
    assert find_violation("X", nested(DEPTH_MAX + 1)) == "elements are nested more than 10000 levels deep"
    assert find_violation("X", b"<a>" * 1_000_000) == "elements are nested more than 10000 levels deep"
    assert find_violation("X", nested(100, inner=b"<b/>" * DEPTH_MAX)) is None


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-16", "windows-1252", "ISO-8859-15", "koi8-u", "us-ascii"])
def test_a_document_may_declare_its_encoding(encoding: str) -> None:
    assert find_violation("X", f"<?xml version='1.0' encoding='{encoding}'?><a>x</a>".encode(encoding)) is None


@pytest.mark.parametrize(
    "codec",
    ["unicode_escape", "Unicode-Escape", "raw_unicode_escape", "charmap", "punycode", "rot13", "hex", "aliases"],
)
def test_encodings_known_only_to_python_are_rejected(codec: str) -> None:
    """Python has these codecs, but they are not character encodings of XML."""
    body = f"<?xml version='1.0' encoding='{codec}'?><a/>".encode()
    assert find_violation("X", body) == f"the body has the unknown encoding {codec!r}"


def test_unknown_encodings_are_not_cached() -> None:
    """Python caches each requested name; a sender could use any number of long ones."""
    before = {*encodings._cache}
    for number in range(100):
        reason = find_violation("X", b"<?xml version='1.0' encoding='x%d%s'?><a/>" % (number, b"y" * 10_000))
        assert reason is not None
        assert len(reason) < 200
    assert {*encodings._cache} == before


def test_reasons_are_short() -> None:
    for declared in (b"<!ENTITY %% %s 'x'>", b"<!ENTITY %s '&#38;x;'>"):
        reason = find_violation("X", b"<!DOCTYPE a [" + declared % (b"n" * 10_000) + b"]><a/>")
        assert reason is not None
        assert len(reason) < 200


def test_external_entities_are_not_read() -> None:
    body = b"<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///dev/zero'>]><a>&b;</a>"
    assert find_violation("X", body) is None


def test_empty_and_none() -> None:
    assert find_violation("E", None) is None
    assert find_violation("E", b"") is None
    assert find_violation("E", b" ")
    assert find_violation("N", b"\x00 anything <") is None
