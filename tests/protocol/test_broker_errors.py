"""Errors and the bodies of Error messages."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker._well_known import ERROR
from ssbroker.protocol.broker_errors import ConversationError, error_body, parse_error_body


def test_an_error_body_is_valid_xml_whatever_the_text() -> None:
    body = ElementTree.fromstring(error_body(-8498, "message type 'a\x01<&>b\r\ud800'"))
    assert [each.text for each in body] == ["-8498", "message type 'a\ufffd<&>b\r\ufffd'"]


def test_the_body_of_an_error() -> None:
    assert ConversationError(42, 'a <b> & "c"').body() == (
        b'<Error xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/Error"><Code>42</Code>'
        b'<Description>a &lt;b&gt; &amp; "c"</Description></Error>'
    )


@given(st.text(), st.integers(-(2**31), 2**31 - 1))
def test_the_body_of_an_error_is_always_well_formed(description: str, code: int) -> None:
    root = ElementTree.fromstring(ConversationError(code, description).body())
    assert [child.tag for child in root] == [f"{{{ERROR}}}Code", f"{{{ERROR}}}Description"]
    assert root[0].text == str(code)
    if description.isprintable():
        assert (root[1].text or "") == description


@pytest.mark.parametrize("reference", [b"&#%s;" % (b"9" * 5000), b"&#x%s;" % (b"f" * 5000)])
def test_an_error_with_unreadable_character_references_is_read_partly(reference: bytes) -> None:
    body = b"<Error><Code>-1</Code><Description>%s</Description></Error>" % reference
    found = parse_error_body(body)
    assert found is None or found.code == -1
