"""Whether a body is what its message type demands (fact 138, B21)."""

from __future__ import annotations

from typing import Final
from xml.parsers import expat

from ssbroker.store.objects import Validation

EXPANSION_MAX: Final = 8 << 20
"""The characters to which the entities of a document may expand at most, and how often declared attributes may be looked at for it."""


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
    parser = expat.ParserCreate()
    references, elements = body.count(b"&"), body.count(b"<")
    attributes = 0

    def declared(
        name: str,
        is_parameter: bool,  # noqa: FBT001  # expat calls it
        value: str | None,
        _base: str | None,
        _system: str | None,
        _public: str | None,
        _notation: str | None,
    ) -> None:
        if is_parameter:
            raise _RefusedError(f"it declares the parameter entity {name!r}; these are not allowed")
        if value is None:
            return  # an external one, which is never read
        if "&" in value or len(value) * references > EXPANSION_MAX:
            raise _RefusedError(f"its entity {name!r} may expand to too much")

    def declared_attribute(*_: object) -> None:
        # expat looks at all of them for each element, and for each of them.
        nonlocal attributes
        attributes += 1
        if attributes * max(attributes, elements) > EXPANSION_MAX:
            raise _RefusedError("it declares too many attributes")

    parser.EntityDeclHandler = declared
    parser.AttlistDeclHandler = declared_attribute
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        return f"it is no well-formed XML: {error}"
    except _RefusedError as error:
        return str(error)
    except (LookupError, ValueError) as error:  # an encoding that it names and nobody knows
        return f"it is no well-formed XML: {error}"
    return None
