"""Bodies of error messages."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker._well_known import ERROR
from ssbroker.broker.dialogs.message import ConversationError, read_failure


def test_the_body_of_an_error() -> None:
    assert ConversationError(42, 'a <b> & "c"').body() == (
        b'<Error xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/Error"><Code>42</Code>'
        b'<Description>a &lt;b&gt; &amp; "c"</Description></Error>'
    )


@given(st.text(), st.integers(-(2**31), 2**31 - 1))
def test_the_body_of_an_error_is_always_well_formed(description: str, code: int) -> None:
    root = ET.fromstring(ConversationError(code, description).body())
    assert [child.tag for child in root] == [f"{{{ERROR}}}Code", f"{{{ERROR}}}Description"]
    assert root[0].text == str(code)
    if description.isprintable():
        assert (root[1].text or "") == description


@pytest.mark.parametrize("reference", [b"&#%s;" % (b"9" * 5000), b"&#x%s;" % (b"f" * 5000)])
def test_an_error_with_unreadable_character_references_is_read_partly(reference: bytes) -> None:
    body = b"<Error><Code>-1</Code><Description>%s</Description></Error>" % reference
    found = read_failure(body)
    assert found is None or found.code == -1
