"""Validates bodies against the validation of their message type: any, empty, or well-formed XML within limits."""

from __future__ import annotations

import encodings
import encodings.aliases
import pkgutil
from functools import cache
from typing import Final
from xml.parsers import expat

from ssbroker.protocol.broker_errors import ConversationError, conversation_error
from ssbroker.store.objects import MessageType, Validation

EXPANSION_MAX: Final = 8 << 20
"""Maximum number of characters to which the entities of a document may expand, and of attribute declaration lookups."""

DEPTH_MAX: Final = 10_000
"""Maximum nesting depth of elements; the parser needs much memory for the name of each open element."""

_NON_TEXT_CODECS: Final = frozenset(
    {
        *("aliases", "charmap", "idna", "mbcs", "oem", "punycode", "raw_unicode_escape", "undefined", "unicode_escape"),
        *("base64_codec", "bz2_codec", "hex_codec", "quopri_codec", "rot_13", "uu_codec", "zlib_codec"),
    }
)
"""Python codecs that are not character encodings and must not be used for XML."""


def validation_error(message_type: MessageType, body: bytes | None) -> ConversationError | None:
    """Returns the error to send back for a body that violates its message type; None if it is valid."""
    if message_type.validation == "N":
        return None
    reason = find_violation(message_type.validation, body)
    return None if reason is None else conversation_error(8430, message_type=message_type.name, reason=reason)


class _LimitError(Exception):
    """A document uses a forbidden feature or exceeds a limit."""


def find_violation(validation: Validation, body: bytes | None) -> str | None:
    """Returns why a body fails validation; None if it is valid."""
    if validation == "N":
        return None
    if validation == "E":
        return None if not body else f"the body must be empty, but has {len(body)} bytes"
    return _xml_violation(body or b"")


def _xml_violation(body: bytes) -> str | None:
    parser = expat.ParserCreate(intern=None)
    _Limits(body).watch(parser)
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        return f"the body is not well-formed XML: {error}"
    except _LimitError as error:
        return str(error)
    except (LookupError, ValueError) as error:  # the declared encoding is not a text encoding
        return f"the body is not well-formed XML: {error}"
    return None


class _Limits:
    """Limits the resources that a document can make its XML parser use."""

    def __init__(self, body: bytes) -> None:
        self._references: Final = body.count(b"&")
        self._elements: Final = body.count(b"<")
        self._attributes = 0
        self._depth = 0

    def watch(self, parser: expat.XMLParserType) -> None:
        parser.XmlDeclHandler = self._on_xml_declaration
        parser.EntityDeclHandler = self._on_entity_declaration
        parser.AttlistDeclHandler = self._on_attribute_declaration
        if self._elements > DEPTH_MAX:
            parser.specified_attributes = True  # otherwise each element would decode the defaults of all its attributes
            parser.StartElementHandler, parser.EndElementHandler = self._on_element_start, self._on_element_end

    def _on_xml_declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encodings.normalize_encoding(encoding).lower() not in _known_encodings():
            raise _LimitError(f"the body has the unknown encoding {encoding!r:.80}")

    def _on_entity_declaration(
        self,
        name: str,
        is_parameter: bool,  # noqa: FBT001  # expat calls it
        value: str | None,
        _base: str | None,
        _system: str | None,
        _public: str | None,
        _notation: str | None,
    ) -> None:
        if is_parameter:
            raise _LimitError(
                f"the body declares the parameter entity {name!r:.80}; parameter entities are not allowed"
            )
        if value is None:
            return  # an external entity, which is never read
        if "&" in value:
            raise _LimitError(f"the entity {name!r:.80} refers to other entities, which is not allowed")
        if len(value) * self._references > EXPANSION_MAX:
            raise _LimitError(f"the entity {name!r:.80} may expand to more than {EXPANSION_MAX:,} characters")

    def _on_attribute_declaration(self, *_: object) -> None:
        # expat compares each declaration with all others, and does so for each element.
        self._attributes += 1
        if self._attributes * max(self._attributes, self._elements) > EXPANSION_MAX:
            raise _LimitError("the body declares too many attributes")

    def _on_element_start(self, *_: object) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _LimitError(f"elements are nested more than {DEPTH_MAX} levels deep")

    def _on_element_end(self, _name: str) -> None:
        self._depth -= 1


@cache
def _known_encodings() -> frozenset[str]:
    """Returns the names of Python's text encodings. Looking up an unknown name in Python would cache it forever."""
    modules = {module.name for module in pkgutil.iter_modules(encodings.__path__)} - _NON_TEXT_CODECS
    return frozenset({*modules, *(alias for alias, module in encodings.aliases.aliases.items() if module in modules)})
