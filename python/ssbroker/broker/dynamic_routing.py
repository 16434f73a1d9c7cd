"""Dynamic routing: requests missing routes from the configuration service."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple
from xml.parsers import expat

from ssbroker._arguments import EPOCH, epoch_microseconds, guid_bytes
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.dialogs import begin_end, deliver, send
from ssbroker.broker.dialogs.contract_rules import complaint
from ssbroker.broker.dialogs.errors import escaped, read_failure
from ssbroker.broker.failure_log import log_failure
from ssbroker.broker.unit_of_work import Work, instance_transaction
from ssbroker.ddl.route_validation import CONFIGURATION_SERVICE
from ssbroker.exceptions import InvalidGuidError, MalformedDataError, SsbrokerError
from ssbroker.protocol.config import CONFIGURATION_NOTICE, ERROR, MISSING_ROUTE, SECOND, SYSTEM_SERVICE
from ssbroker.protocol.states import ConversationState
from ssbroker.store import endpoints, queues, registry
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

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
            guid = None if named is None else uuid.UUID(bytes=guid_bytes(named.strip(), name=_BROKER))
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


REFUSED_FOR: Final = registry.RETRY_DELAY_MAX
"""For how long an error of the configuration service counts as its answer (N26)."""
ANSWERED_FOR: Final = 4 * SECOND
"""For how long the end of its dialog does where no error came: a route that leads nowhere has it asked again."""
OPEN_MAX: Final = 1_000
"""The requests of one database that are open at a time at most: neighbours may name services that nobody has."""
PATIENCE: Final = 0.1
"""The seconds for which a thread that has committed waits for others."""
LOGGER: Final = logging.getLogger("ssbroker.broker")


class RouteRequest(NamedTuple):
    """What is to be asked for."""

    database: str
    """The database in whose table the route is missing."""
    service_name: str
    broker_instance: bytes | None
    """The broker id that the conversation names, if any."""


class DynamicRouting:
    """The requests for routes of an instance's databases. For any number of threads.

    Args:
        instance: The instance.
    """

    def __init__(self, instance: InstanceContext) -> None:
        self._instance: Final = instance
        self._asking: Final[dict[int, tuple[int, bool]]] = {}
        """For each database the version of its objects, and whether a route among them leads to a configuration service."""

    def ask(
        self,
        asks: Iterable[RouteRequest],
        *,
        patience: float | None = None,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> dict[RouteRequest, str]:
        """Sends a request for each service for which the database has none open and none has just been answered.

        Args:
            asks: What is missing.
            patience: The seconds to wait for the write lock of a database; None is as long as always.
            may_begin: Is asked for each request that would be sent; where it says no, that is not.

        Returns:
            Why the configuration service has refused, for those that it has.

        Raises:
            SsbrokerError: A database cannot be used now.
        """
        refused: dict[RouteRequest, str] = {}
        by_database: dict[str, list[RouteRequest]] = {}
        for ask in asks:
            if ask.service_name != SYSTEM_SERVICE:  # what it is answered is never missing
                by_database.setdefault(ask.database, []).append(ask)
        for name, wanted in by_database.items():
            database = self._instance.database(name)
            now = epoch_microseconds(database.now())
            with database.file.read() as connection:
                known = {ask: registry.find_request(connection, ask.service_name) for ask in wanted}
                room = OPEN_MAX - len(registry.pending_services(connection))
            unasked: dict[str, RouteRequest] = {}
            for ask, request in known.items():
                if request is None or not request.blocks_new_request(now=now):
                    unasked.setdefault(ask.service_name, ask)
            new = [ask for ask in list(unasked.values())[: max(room, 0)] if may_begin()]
            if new:
                _ask(database, new, patience=patience)
            refused |= {
                ask: request.refusal
                for ask, request in known.items()
                if request is not None and request.refusal and request.blocks_new_request(now=now)
            }
        return refused

    def pending(self, database: DatabaseContext, objects: Objects) -> tuple[str, ...]:
        """The services of which a database awaits a route; what its system service is asked with is never missing.

        Args:
            database: The database.
            objects: What stands in it.

        Returns:
            Their names; nothing where no route leads to a configuration service.

        Raises:
            StorageError: The file cannot be read.
        """
        known = self._asking.get(database.database_id)
        if known is None or known[0] != objects.version:
            is_asking = any(route.remote_service_name == CONFIGURATION_SERVICE for route in objects.routes.values())
            known = self._asking[database.database_id] = (objects.version, is_asking)
        if not known[1]:
            return ()
        return (SYSTEM_SERVICE, *database.file.ask(registry.pending_services))

    def is_asking(self, database: DatabaseContext, *, now: int) -> bool:
        """Whether a route of a database leads to a configuration service.

        Args:
            database: The database.
            now: The moment, in microseconds since 1970.

        Returns:
            Whether.

        Raises:
            StorageError: The file cannot be read.
        """
        return any(
            route.remote_service_name == CONFIGURATION_SERVICE and (route.lifetime is None or now < route.lifetime)
            for route in database.objects().routes.values()
        )

    def arrived(self, database: DatabaseContext, queue_ids: Iterable[int]) -> bool:
        """Called after a commit that put messages into queues: an answer may be among them.

        Args:
            database: The database.
            queue_ids: The queues.

        Returns:
            Whether somebody else has to look at the answers, at once.
        """
        if registry.SYSTEM_QUEUE_ID not in queue_ids:
            return False
        if any(each.file.is_written_here for each in self._instance.databases):
            return True
        try:
            self.settle(database, patience=PATIENCE if self._instance.background else None)
        except SsbrokerError as error:
            log_failure(database, "answers for missing routes are looked at later", error)
            return True
        return False

    def settle(self, database: DatabaseContext, *, patience: float | None = None) -> None:
        """Ends the dialogs that the configuration service has ended, and has what waited for them routed again (R62).

        Args:
            database: The database that asked.
            patience: The seconds to wait for its write lock; None is as long as always.

        Raises:
            SsbrokerError: The database cannot be used now.
        """
        if SYSTEM_SERVICE not in database.objects().services or not database.file.ask(registry.ended_requests):
            return
        refused: list[tuple[str, str, int]] = []
        with instance_transaction(database, lock_timeout=patience) as work:
            for service_name, handle in registry.ended_requests(work.connection):
                refusal, again = _close(work, service_name, endpoints.by_handle(work.connection, handle))
                if refusal:
                    refused.append((service_name, refusal, again))
            work.effects.is_catalog_changed = True
        self._tell(database, refused)

    def _tell(self, database: DatabaseContext, refused: Iterable[tuple[str, str, int]]) -> None:
        """Logs what was refused; neighbours may name any service, so it is as with what they have happen (N35)."""
        now, may_be_logged = epoch_microseconds(database.now()), self._instance.events.allows_line
        for service_name, refusal, again in refused:
            if may_be_logged("9761", level=logging.WARNING, source=database.name, now=now):
                LOGGER.warning(
                    "%s: 9761: the configuration service has no route for %r: %s; it is asked again after %s",
                    database.name,
                    service_name,
                    refusal,
                    (EPOCH + timedelta(microseconds=again)).isoformat(timespec="seconds"),
                )


def forget_route_requests(work: Work) -> None:
    """Has a database that is attached ask for what it still lacks: whom it had asked may be of another instance, and makes no route here.

    Args:
        work: A transaction of the database.
    """
    for handle in registry.delete_open_requests(work.connection):
        dialog = endpoints.by_handle(work.connection, handle)
        if dialog is not None:
            deliver.remove(work, dialog)


def _ask(database: DatabaseContext, asks: Iterable[RouteRequest], *, patience: float | None) -> None:
    if SYSTEM_SERVICE not in database.objects().services:
        with database.file.write(lock_timeout=patience) as connection:
            registry.create_system_service(connection, database.objects(connection), name=SYSTEM_SERVICE)
    with instance_transaction(database, lock_timeout=patience) as work:
        for ask in asks:
            request = registry.find_request(work.connection, ask.service_name)
            if request is None or not request.blocks_new_request(now=work.now()):
                _send(work, ask)


def _send(work: Work, ask: RouteRequest) -> None:
    dialog = begin_end.begin(
        work,
        SYSTEM_SERVICE,
        CONFIGURATION_SERVICE,
        broker_instance=None,
        contract=CONFIGURATION_NOTICE,
        lifetime=None,  # fact 62
        encryption=False,
        related_conversation=None,
        related_conversation_group=None,
    )
    guid = None if ask.broker_instance is None else uuid.UUID(bytes=ask.broker_instance)
    body = MissingRoute(ask.service_name, guid).body()
    state = send.check(work, dialog, (MISSING_ROUTE,), now=work.now())
    send.send(work, [(dialog, state, [(MISSING_ROUTE, body)])])
    registry.record_request(work.connection, ask.service_name, conversation_handle=dialog.conversation_handle)


def _close(work: Work, service_name: str, dialog: ConversationEndpoint | None) -> tuple[str, int]:
    """The dialog is over, or somebody has removed it: why there is no route, if that was said, and when the service is asked again."""
    refusal = ""
    if dialog is not None:
        refusal = _refusal(work.connection, work.objects, dialog)
        if dialog.state != ConversationState.CD:
            begin_end.end(work, dialog, None)
    now = work.now()
    again = now + (REFUSED_FOR if refusal else ANSWERED_FOR)
    registry.record_answer(work.connection, service_name, ask_again_at=again, refusal=refusal, now=now)
    return refusal, again


def _refusal(connection: Connection, objects: Objects, dialog: ConversationEndpoint) -> str:
    if dialog.state != ConversationState.ER:
        return ""
    error_id = objects.message_types[ERROR].message_type_id
    found, _ = queues.ready_messages(connection, dialog.endpoint_id, limit=-1, bytes_max=1 << 20)
    bodies = [message.message_body for message in found if message.message_type_id == error_id]
    failure = read_failure(bodies[0]) if bodies else None
    return "it gave no reason" if failure is None else f"error {failure.code}, {failure.description}"
