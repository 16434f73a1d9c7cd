"""What a configuration service is asked (facts 57, 58): the body of MissingRoute, written and read."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final
from xml.parsers import expat

from ssbroker import guids
from ssbroker.broker.dialogs.error_body import escaped
from ssbroker.broker.dialogs.validation import complaint
from ssbroker.exceptions import InvalidGuidError, MalformedDataError
from ssbroker.protocol.names import MISSING_ROUTE

_SERVICE: Final = "SERVICE_NAME"
_BROKER: Final = "BROKER_INSTANCE"
_DEPTH: Final = 2


@dataclass(frozen=True, slots=True)
class MissingRoute:
    """A request for a route.

    Attributes:
        service_name: The service that no route leads to.
        broker_instance: The broker id that the waiting conversation names, if any.

    Examples:
        >>> MissingRoute.read(MissingRoute("//Stock").body())
        MissingRoute(service_name='//Stock', broker_instance=None)
    """

    service_name: str
    broker_instance: uuid.UUID | None = None

    def body(self) -> bytes:
        """The body of the message.

        Returns:
            The request as XML.

        Examples:
            >>> MissingRoute("//Stock").body().partition(b">")[2]
            b'<SERVICE_NAME>//Stock</SERVICE_NAME></MissingRoute>'
        """
        said = {_SERVICE: self.service_name}
        if self.broker_instance is not None:
            said[_BROKER] = str(self.broker_instance).upper()
        inner = "".join(f"<{name}>{escaped(value)}</{name}>" for name, value in said.items())
        return f'<MissingRoute xmlns="{MISSING_ROUTE}">{inner}</MissingRoute>'.encode()

    @classmethod
    def read(cls, body: bytes | None) -> MissingRoute:
        """Reads the body of a message; elements besides are left out of account.

        Args:
            body: The body, of whatever origin.

        Returns:
            The request.

        Raises:
            MalformedDataError: It is no request for a route.
        """
        reason = complaint("X", body)
        if reason is not None:
            raise MalformedDataError(f"MissingRoute: {reason}", expected="a MissingRoute element")
        said = _elements(body or b"")
        if _SERVICE not in said:
            raise MalformedDataError("MissingRoute: names no service", expected=f"an element {_SERVICE}")
        named = said.get(_BROKER)
        try:
            guid = None if named is None else uuid.UUID(bytes=guids.as_bytes(named.strip(), name=_BROKER))
        except InvalidGuidError as error:
            raise MalformedDataError(f"MissingRoute: {error}", expected="a GUID") from error
        return cls(said[_SERVICE], guid)


def _elements(body: bytes) -> dict[str, str]:
    """The text of each element below the root, by its local name.

    Raises:
        MalformedDataError: The root is another one.
    """
    found: dict[str, str] = {}
    path: list[str] = []

    def start(name: str, _: dict[str, str]) -> None:
        path.append(name.rsplit(":", maxsplit=1)[-1])
        if len(path) == _DEPTH:
            found[path[-1]] = ""

    def end(_: str) -> None:
        if len(path) == 1 and path != ["MissingRoute"]:
            raise MalformedDataError(f"MissingRoute: is an element {path[0]}", expected="a MissingRoute element")
        path.pop()

    def text(data: str) -> None:
        if len(path) == _DEPTH:
            found[path[-1]] += data

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.Parse(body, True)
    return found
