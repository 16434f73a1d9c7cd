"""Dynamic routing: requests missing routes from the configuration service."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from xml.parsers import expat

from ssbroker._arguments import EPOCH, guid_bytes
from ssbroker._well_known import CONFIGURATION_NOTICE, CONFIGURATION_SERVICE, ERROR, MISSING_ROUTE, SYSTEM_SERVICE
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.dialogs import dialog_lifecycle, endpoint_end, send
from ssbroker.broker.dialogs.body_validation import find_violation
from ssbroker.broker.dialogs.transmission_status import is_pending
from ssbroker.broker.live_routes import Decision, RoutedSender, explain
from ssbroker.broker.lock_patience import LockWait, has_work_failed, lock_timeout_for
from ssbroker.broker.unit_of_work import Work, database_transaction
from ssbroker.exceptions import InvalidGuidError, LockTimeoutError, MalformedDataError, SsbrokerError
from ssbroker.explain import Explanation
from ssbroker.protocol.broker_errors import escaped, parse_error_body
from ssbroker.protocol.conversation_states import ConversationState
from ssbroker.protocol.settings import SECOND
from ssbroker.router import Router
from ssbroker.store import conversation_endpoints, queues, route_requests
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

_SERVICE: Final = "SERVICE_NAME"
_BROKER: Final = "BROKER_INSTANCE"
_DEPTH: Final = 2


@dataclass(frozen=True, slots=True)
class MissingRoute:
    """The MissingRoute message, which requests a route from the configuration service.

    Attributes:
        service_name: The service without a route.
        broker_instance: The broker id that the waiting conversation names, if any.

    Examples:
        >>> MissingRoute.read(MissingRoute("//Stock").body())
        MissingRoute(service_name='//Stock', broker_instance=None)
    """

    service_name: str
    broker_instance: uuid.UUID | None = None

    def body(self) -> bytes:
        """Returns the body of the message."""
        elements = {_SERVICE: self.service_name}
        if self.broker_instance is not None:
            elements[_BROKER] = str(self.broker_instance).upper()
        inner = "".join(f"<{name}>{escaped(value)}</{name}>" for name, value in elements.items())
        return f'<MissingRoute xmlns="{MISSING_ROUTE}">{inner}</MissingRoute>'.encode()

    @classmethod
    def read(cls, body: bytes | None) -> MissingRoute:
        """Parses the body of a message; ignores unknown elements."""
        reason = find_violation("X", body)
        if reason is not None:
            raise MalformedDataError(f"MissingRoute: {reason}", expected="a MissingRoute element")
        elements = _elements(body or b"")
        if _SERVICE not in elements:
            raise MalformedDataError(
                "MissingRoute: the element SERVICE_NAME is missing", expected=f"an element {_SERVICE}"
            )
        broker_instance = elements.get(_BROKER)
        try:
            guid = (
                None if broker_instance is None else uuid.UUID(bytes=guid_bytes(broker_instance.strip(), name=_BROKER))
            )
        except InvalidGuidError as error:
            raise MalformedDataError(f"MissingRoute: {error}", expected="a GUID") from error
        return cls(elements[_SERVICE], guid)


def _elements(body: bytes) -> dict[str, str]:
    """Returns the text of each element below the root, by its local name."""
    found: dict[str, str] = {}
    path: list[str] = []

    def start(name: str, _: dict[str, str]) -> None:
        path.append(name.rsplit(":", maxsplit=1)[-1])
        if len(path) == _DEPTH:
            found[path[-1]] = ""

    def end(_: str) -> None:
        if len(path) == 1 and path != ["MissingRoute"]:
            raise MalformedDataError(
                f"MissingRoute: the root element is {path[0]:.80}; expected MissingRoute",
                expected="a MissingRoute element",
            )
        path.pop()

    def text(data: str) -> None:
        if len(path) == _DEPTH:
            found[path[-1]] += data

    parser = expat.ParserCreate()
    parser.buffer_text = True  # one call of `text` for many lines
    parser.specified_attributes = True  # default values could be long
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.Parse(body, True)
    return found


RETRY_AFTER_REFUSAL: Final = route_requests.RETRY_DELAY_MAX
"""Microseconds until a request that was answered with an error is sent again."""
RETRY_AFTER_ANSWER: Final = 4 * SECOND
"""Microseconds until a request is sent again after its dialog ended without an error, if the new route does not work."""
OPEN_REQUESTS_MAX: Final = 1_000
"""Maximum number of open requests of one database, because peers may name services that do not exist."""
REQUESTS_BURST: Final = 32
"""The burst of route requests that peers can trigger by naming services without a route."""
REQUESTS_PER_SECOND: Final = 4
"""The number of route requests per second beyond the burst."""
SHORT_LOCK_TIMEOUT: Final = 0.1
"""Seconds that a committing thread waits for a lock; after that, the background thread continues."""
_LOGGER: Final = logging.getLogger("ssbroker.broker")


class RouteRequest(NamedTuple):
    """A route to request."""

    database: str
    """The database whose routing table lacks the route."""
    service_name: str
    broker_instance: bytes | None
    """The broker id that the conversation names, if any."""


def missing_route(explained: Explanation, service_name: str, broker_instance: bytes | None) -> RouteRequest | None:
    """Returns the route to request if no route was found, or if another database has an open request for this service; otherwise None.

    Each database requests its own routes (R1), because the answer to a request creates routes only in the requesting database.
    """
    decision = explained.decision
    if decision["outcome"] == "LOCAL" or decision["next_hop_address"] is not None:
        return None
    if decision["reason"] != "route_requested" and not is_pending(explained.details):
        return None
    lacking = str(explained.details["passes"][-1]["database"])  # the last routing table that was searched (R41)
    return RouteRequest(lacking, service_name, broker_instance)


def missing_routes(
    router: Router, database: str, decided: Iterable[tuple[RoutedSender, Decision]], *, now: datetime
) -> list[RouteRequest]:
    """Returns the routes to request for senders of a database whose messages have no destination."""
    pending = frozenset(router.catalog.pending_requests)
    missing = {(each.far_service, each.far_broker_instance): (each, decision) for each, decision in decided}
    explanations = {
        destination: explain(router, database, sender, now=now)
        for destination, (sender, decision) in missing.items()
        if decision.is_route_requested or sender.far_service in pending
    }
    found = (missing_route(explained, *destination) for destination, explained in explanations.items())
    return [each for each in found if each is not None]


class DynamicRouting:
    """Sends and tracks route requests of the databases of an instance. Thread-safe."""

    def __init__(self, instance: InstanceContext) -> None:
        self._instance: Final = instance
        self._requesting: Final[dict[int, tuple[int, bool]]] = {}
        """For each database, the version of its objects, and whether it has a route to a configuration service."""

    def request(
        self,
        requests: Iterable[RouteRequest],
        *,
        lock_wait: LockWait = None,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> tuple[dict[RouteRequest, str], list[RouteRequest]]:
        """Sends a request for each service that has no open or recently answered request.

        Returns the refused requests, with the reasons, and the requests that were not sent because a database stays locked and another
        attempt must follow at once.
        """
        refused: dict[RouteRequest, str] = {}
        deferred: list[RouteRequest] = []
        by_database: dict[str, list[RouteRequest]] = {}
        for each in requests:
            if each.service_name != SYSTEM_SERVICE:  # replies to this service need no route
                by_database.setdefault(each.database, []).append(each)
        for name, wanted in by_database.items():
            database = self._instance.database(name)
            now = database.instance.microseconds()
            with database.file.read() as connection:
                known = {each: route_requests.find_request(connection, each.service_name) for each in wanted}
                open_left = OPEN_REQUESTS_MAX - len(route_requests.pending_services(connection))
            missing: dict[str, RouteRequest] = {}
            for each, state in known.items():
                if state is None or not state.blocks_new_request(now=now):
                    missing.setdefault(each.service_name, each)
            new = [each for each in list(missing.values())[: max(open_left, 0)] if may_begin()]
            try:
                if new:
                    with lock_timeout_for(database, lock_wait) as lock_timeout:
                        _send_requests(database, new, lock_timeout=lock_timeout)
            except LockTimeoutError:
                if has_work_failed(database, lock_wait):
                    raise
                deferred += wanted
            refused |= {
                each: state.refusal
                for each, state in known.items()
                if state is not None and state.refusal and state.blocks_new_request(now=now)
            }
        return refused, deferred

    def pending(self, database: DatabaseContext, objects: Objects) -> tuple[str, ...]:
        """Returns the services for which a database has requested a route, and its system service, which never needs a route."""
        known = self._requesting.get(database.database_id)
        if known is None or known[0] != objects.version:
            has_route = any(route.remote_service_name == CONFIGURATION_SERVICE for route in objects.routes.values())
            known = self._requesting[database.database_id] = (objects.version, has_route)
        if not known[1]:
            return ()
        return (SYSTEM_SERVICE, *database.file.query(route_requests.pending_services))

    def has_configuration_service(self, database: DatabaseContext, *, now: int) -> bool:
        """Returns whether a database has a route to a configuration service."""
        return any(
            route.remote_service_name == CONFIGURATION_SERVICE and (route.lifetime is None or now < route.lifetime)
            for route in database.objects().routes.values()
        )

    def arrived(self, database: DatabaseContext, queue_ids: Iterable[int]) -> bool:
        """Processes answers after a commit that put messages into queues; returns whether they must be processed later."""
        if route_requests.SYSTEM_QUEUE_ID not in queue_ids:
            return False
        if any(each.file.is_locked_by_this_thread for each in self._instance.databases):
            return True
        try:
            self.close_ended_requests(database, lock_timeout=SHORT_LOCK_TIMEOUT if self._instance.background else None)
        except SsbrokerError as error:
            log_failure(database, "answers to route requests could not be processed; retrying later", error)
            return True
        return False

    def close_ended_requests(self, database: DatabaseContext, *, lock_timeout: float | None = None) -> None:
        """Ends this side of the dialogs that the configuration service has ended, and reroutes waiting messages (R62)."""
        if SYSTEM_SERVICE not in database.objects().services or not database.file.query(route_requests.ended_requests):
            return
        refused: list[tuple[str, str, int]] = []
        with database_transaction(database, lock_timeout=lock_timeout) as work:
            for service_name, handle in route_requests.ended_requests(work.connection):
                refusal, next_request_at = _close(
                    work, service_name, conversation_endpoints.by_handle(work.connection, handle)
                )
                if refusal:
                    refused.append((service_name, refusal, next_request_at))
            work.effects.is_catalog_changed = True
        self._log_refusals(database, refused)

    def _log_refusals(self, database: DatabaseContext, refused: Iterable[tuple[str, str, int]]) -> None:
        """Logs refused requests, at a limited rate because peers may name any service."""
        now, may_be_logged = database.instance.microseconds(), self._instance.events.allows_line
        for service_name, refusal, next_request_at in refused:
            if may_be_logged("9761", level=logging.WARNING, source=database.name, now=now):
                _LOGGER.warning(
                    "%s: error 9761: the configuration service has no route to the service %r: %s; the next request is sent after %s",
                    database.name,
                    service_name,
                    refusal,
                    (EPOCH + timedelta(microseconds=next_request_at)).isoformat(timespec="seconds"),
                )


def forget_route_requests(work: Work) -> None:
    """Deletes the open requests of an attached database, so that it sends new requests: the old requests may have gone to another instance."""
    for handle in route_requests.delete_open_requests(work.connection):
        dialog = conversation_endpoints.by_handle(work.connection, handle)
        if dialog is not None:
            endpoint_end.remove(work, dialog)


def _send_requests(database: DatabaseContext, requests: Iterable[RouteRequest], *, lock_timeout: float | None) -> None:
    if SYSTEM_SERVICE not in database.objects().services:
        with database.file.write(lock_timeout=lock_timeout) as connection:
            route_requests.create_system_service(connection, database.objects(connection), name=SYSTEM_SERVICE)
    with database_transaction(database, lock_timeout=lock_timeout) as work:
        for each in requests:
            state = route_requests.find_request(work.connection, each.service_name)
            if state is None or not state.blocks_new_request(now=work.now()):
                _send(work, each)


def _send(work: Work, request: RouteRequest) -> None:
    dialog = dialog_lifecycle.begin(
        work,
        SYSTEM_SERVICE,
        CONFIGURATION_SERVICE,
        broker_instance=None,
        contract=CONFIGURATION_NOTICE,
        lifetime=None,
        encryption=False,
        related_conversation=None,
        related_conversation_group=None,
    )
    guid = None if request.broker_instance is None else uuid.UUID(bytes=request.broker_instance)
    body = MissingRoute(request.service_name, guid).body()
    send.send_one(work, dialog, MISSING_ROUTE, body)
    route_requests.record_request(work.connection, request.service_name, conversation_handle=dialog.conversation_handle)


def _close(work: Work, service_name: str, dialog: ConversationEndpoint | None) -> tuple[str, int]:
    """Completes a request whose dialog was ended by the configuration service or removed.

    Returns the reason of a refusal, if any, and the time of the next request.
    """
    refusal = ""
    if dialog is not None:
        refusal = _refusal(work.connection, work.objects, dialog)
        if dialog.state != ConversationState.CD:
            dialog_lifecycle.end(work, dialog, None)
    now = work.now()
    next_request_at = now + (RETRY_AFTER_REFUSAL if refusal else RETRY_AFTER_ANSWER)
    route_requests.record_answer(work.connection, service_name, ask_again_at=next_request_at, refusal=refusal, now=now)
    return refusal, next_request_at


def _refusal(connection: Connection, objects: Objects, dialog: ConversationEndpoint) -> str:
    if dialog.state != ConversationState.ER:
        return ""
    error_id = objects.message_types[ERROR].message_type_id
    found, _ = queues.ready_messages(connection, dialog.endpoint_id, limit=-1, bytes_max=1 << 20)
    bodies = [message.message_body for message in found if message.message_type_id == error_id]
    failure = parse_error_body(bodies[0]) if bodies else None
    return "no reason was given" if failure is None else f"error {failure.code}, {failure.description}"
