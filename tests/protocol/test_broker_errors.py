"""Errors and the bodies of Error messages."""

from __future__ import annotations

from xml.etree import ElementTree

from ssbroker.protocol.broker_errors import error_body


def test_an_error_body_is_valid_xml_whatever_the_text() -> None:
    body = ElementTree.fromstring(error_body(-8498, "message type 'a\x01<&>b\r\ud800'"))
    assert [each.text for each in body] == ["-8498", "message type 'a\ufffd<&>b\r\ufffd'"]
