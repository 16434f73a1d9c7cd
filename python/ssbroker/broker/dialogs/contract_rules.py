"""What a contract and its message types allow, and the priority of conversations."""

from __future__ import annotations

import encodings
import encodings.aliases
import pkgutil
from functools import cache
from typing import Final
from xml.parsers import expat

from ssbroker.broker.dialogs.errors import ConversationError, failure
from ssbroker.protocol.errors import broker_error
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.objects import Contract, MessageType, Objects, Validation

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


PRIORITY_DEFAULT: Final = 5


def sendable(objects: Objects, endpoint: ConversationEndpoint, name: object) -> MessageType:
    """The message type that this side is about to send.

    Raises:
        BrokerError: There is none of this name (8428), the contract does not hold it (8431), or the other side sends it (8432, 8434).
    """
    kind = objects.message_types.get(name) if isinstance(name, str) else None
    if kind is None:
        raise broker_error(8428, message_type=name)
    contract = objects.contracts_by_id[endpoint.service_contract_id]
    rule = contract.messages.get(kind.message_type_id)
    if rule is None:
        raise broker_error(8431, contract=contract.name, message_type=name)
    if endpoint.is_initiator and not rule.is_sent_by_initiator:
        raise broker_error(8432, message_type=name)
    if not endpoint.is_initiator and not rule.is_sent_by_target:
        raise broker_error(8434, message_type=name)
    return kind


def takeable(
    objects: Objects, contract: Contract, name: str, *, from_initiator: bool
) -> MessageType | ConversationError:
    """The message type that has arrived from the other side, or what goes back for it (B11)."""
    kind = objects.message_types.get(name)
    rule = None if kind is None else contract.messages.get(kind.message_type_id)
    if kind is None or rule is None:
        return failure(8498, message_type=name, contract=contract.name)
    if not (rule.is_sent_by_initiator if from_initiator else rule.is_sent_by_target):
        return failure(8457, message_type=name, contract=contract.name)
    return kind


def unfit(kind: MessageType, body: bytes | None) -> ConversationError | None:
    """What goes back for a body that is not what its type demands; None if it is."""
    if kind.validation == "N":
        return None
    reason = complaint(kind.validation, body)
    return None if reason is None else failure(8430, message_type=kind.name, reason=reason)


def priority(objects: Objects, *, service_contract_id: int, service_id: int, far_service: str) -> int:
    """The priority of an endpoint that is being made: that of the broker priority that says most about it (fact 148)."""
    best, best_level = -1, PRIORITY_DEFAULT
    for one in objects.priorities.values():
        said = (
            (one.service_contract_id, service_contract_id),
            (one.local_service_id, service_id),
            (one.remote_service_name, far_service),
        )
        if any(named not in (None, actual) for named, actual in said):
            continue
        # The contract weighs more than the local service, and that more than the remote one.
        weight = sum(rank for rank, (named, _) in zip((4, 2, 1), said, strict=True) if named is not None)
        if weight > best:
            best, best_level = weight, one.priority
    return best_level
