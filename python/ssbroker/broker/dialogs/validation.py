"""Whether a body is what its message type demands (fact 138, B21)."""

from __future__ import annotations

import encodings
import encodings.aliases
import pkgutil
from functools import cache
from typing import Final
from xml.parsers import expat

from ssbroker.store.objects import Validation

EXPANSION_MAX: Final = 8 << 20
"""The characters to which the entities of a document may expand at most, and how often declared attributes may be looked at for it."""

DEPTH_MAX: Final = 10_000
"""How many elements may be open at once; the parser keeps the name of each, in many times the room that it takes in the document."""

_NOT_OF_CHARACTERS: Final = frozenset(
    {
        *("aliases", "charmap", "idna", "mbcs", "oem", "punycode", "raw_unicode_escape", "undefined", "unicode_escape"),
        *("base64_codec", "bz2_codec", "hex_codec", "quopri_codec", "rot_13", "uu_codec", "zlib_codec"),
    }
)
"""What Python also calls encodings: some it would take for one of XML, and `unicode_escape` warns of each other byte."""


class _RefusedError(Exception):
    """The document asks for what is not done for it."""


def complaint(validation: Validation, body: bytes | None) -> str | None:
    """What is wrong with a body.

    Args:
        validation: NONE, EMPTY or WELL_FORMED_XML, as `N`, `E` or `X`.
        body: The body; None is an empty one.

    Returns:
        What is wrong, or None.

    Examples:
        >>> complaint("X", b"<order/>"), complaint("E", b"x")
        (None, 'it has to be empty, and has 1 bytes')
    """
    if validation == "N":
        return None
    if validation == "E":
        return None if not body else f"it has to be empty, and has {len(body)} bytes"
    return _xml_complaint(body or b"")


def _xml_complaint(body: bytes) -> str | None:
    parser = expat.ParserCreate(intern=None)
    _Limits(body).watch(parser)
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        return f"it is no well-formed XML: {error}"
    except _RefusedError as error:
        return str(error)
    except (LookupError, ValueError) as error:  # what it names is an encoding, and not of text
        return f"it is no well-formed XML: {error}"
    return None


class _Limits:
    """Counts what a document asks of its parser, and refuses what is too much."""

    def __init__(self, body: bytes) -> None:
        self._references: Final = body.count(b"&")
        self._elements: Final = body.count(b"<")
        self._attributes = 0
        self._depth = 0

    def watch(self, parser: expat.XMLParserType) -> None:
        parser.XmlDeclHandler = self._begun
        parser.EntityDeclHandler = self._declared
        parser.AttlistDeclHandler = self._declared_attribute
        if self._elements > DEPTH_MAX:
            parser.StartElementHandler, parser.EndElementHandler = self._opened, self._closed

    def _begun(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encodings.normalize_encoding(encoding).lower() not in _known_encodings():
            raise _RefusedError(f"nobody knows its encoding {encoding!r:.80}")

    def _declared(
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
            raise _RefusedError(f"it declares the parameter entity {name!r:.80}; these are not allowed")
        if value is None:
            return  # an external one, which is never read
        if "&" in value or len(value) * self._references > EXPANSION_MAX:
            raise _RefusedError(f"its entity {name!r:.80} may expand to too much")

    def _declared_attribute(self, *_: object) -> None:
        # expat looks at all of them for each element, and for each of them.
        self._attributes += 1
        if self._attributes * max(self._attributes, self._elements) > EXPANSION_MAX:
            raise _RefusedError("it declares too many attributes")

    def _opened(self, *_: object) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _RefusedError(f"more than {DEPTH_MAX} of its elements stand in each other")

    def _closed(self, _name: str) -> None:
        self._depth -= 1


@cache
def _known_encodings() -> frozenset[str]:
    """The names of Python's encodings of characters. Each other name that it is asked for it remembers for ever."""
    modules = {module.name for module in pkgutil.iter_modules(encodings.__path__)} - _NOT_OF_CHARACTERS
    return frozenset({*modules, *(alias for alias, module in encodings.aliases.aliases.items() if module in modules)})
