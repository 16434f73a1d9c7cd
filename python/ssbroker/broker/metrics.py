"""Prometheus metrics of an instance."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ssbroker.broker import counters
from ssbroker.broker.instance import instance_context
from ssbroker.broker.overview import DatabaseQueue, Rows, forwarding_of, overview_of
from ssbroker.ddl.statements import LEVELS
from ssbroker.exceptions import MissingDependencyError, SsbrokerError
from ssbroker.protocol.events import (
    ActivationEvent,
    ActivationStep,
    ConnectionEvent,
    ConnectionStep,
    CorruptedMessage,
    Event,
    MessageUndeliverable,
)
from ssbroker.store.database_registry import MSDB_NAME

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from ssbroker.broker.instance import Instance


_TRANSPORT: Final = {
    "transport_send_ios": ("total_sends", "Writes to connections with other instances."),
    "transport_receive_ios": ("total_receives", "Reads from connections with other instances."),
    "transport_send_bytes": ("total_bytes_sent", "Bytes written to connections with other instances."),
    "transport_receive_bytes": ("total_bytes_received", "Bytes read from connections with other instances."),
    "message_fragment_sends": ("total_fragments_sent", "Message fragments written to connections."),
    "message_fragment_receives": ("total_fragments_received", "Message fragments read from connections."),
}
_EVENTS: Final[dict[str, tuple[Callable[[Event], bool], str]]] = {
    "corrupted_messages": (
        lambda event: isinstance(event, CorruptedMessage),
        "Received fragments that were damaged or forged.",
    ),
    "dropped_messages": (
        lambda event: isinstance(event, MessageUndeliverable),
        "Received messages that could not be delivered.",
    ),
    "tasks_started": (
        lambda event: isinstance(event, ActivationEvent) and event.step is ActivationStep.STARTED,
        "Queue readers that were started.",
    ),
    "tasks_aborted": (
        lambda event: isinstance(event, ActivationEvent) and event.step is ActivationStep.ABORTED,
        "Queue readers that ended with an exception.",
    ),
    "connections_failed": (
        lambda event: (
            isinstance(event, ConnectionEvent) and (event.step is ConnectionStep.CONNECT_FAILED or event.error != 0)
        ),
        "Connections with other instances that could not be established, were refused, or broke.",
    ),
}
_LOGGER: Final = logging.getLogger("ssbroker.broker")
_LISTS: Final = ("queues", "moved", "leases", "conversations", "transmission_queue")
_MESSAGE_STATUSES: Final = ("ready", "waiting", "leased", "incomplete", "retained")
SERVICES_MAX: Final = 1000
"""The maximum number of services that metrics of the transmission queue count separately; peers can choose service names."""
_OTHERS: Final = "(others)"


def metrics(instance: Instance) -> Metrics:
    """Returns a collector for a registry of `prometheus_client`, with the metrics that `ssbroker serve` offers on `/metrics`.

    The state of queues, conversations, leases and transmission queues is read from the files, whichever process changed
    them. Counters count only the work of this process.

    Args:
        instance: An open instance. The metrics of several instances have the same names and labels, so each instance needs a
            registry of its own. After the instance is closed, the collector has no metrics.

    Returns:
        The collector. Its `close` stops counting events. A registry raises ValueError if a second collector is
        registered.

    Raises:
        MissingDependencyError: The library `prometheus_client` is not installed.
        SchemaError: `instance` is not an `Instance`.

    Examples:
        >>> import tempfile, ssbroker
        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> with tempfile.TemporaryDirectory() as folder, ssbroker.Instance.open(folder, create=True) as instance:
        ...     registry.register(ssbroker.metrics(instance))
        ...     _ = instance.queue("Jobs").put(b"two chairs")
        ...     labels = {"database": "Queues", "queue": "dbo.Jobs", "status": "ready"}
        ...     registry.get_sample_value("ssbroker_queue_messages", labels) == 1
        True
    """
    return Metrics(instance)


class Metrics:
    """The Prometheus metrics of an instance: events counted since this object was created, and the state of the databases at each request.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
        ...     metrics = Metrics(instance)
        ...     "ssbroker_open_connections 0.0" in metrics.text().decode().splitlines()
        True
    """

    def __init__(self, instance: Instance) -> None:
        try:
            from prometheus_client.core import CollectorRegistry  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise MissingDependencyError(
                "metrics need prometheus-client: pip install 'ssbroker[broker]'", name="prometheus_client"
            ) from error
        self._context: Final = instance_context(instance)
        self._was_logged = False
        self._instance: Final = instance
        self._guard: Final = threading.RLock()
        self._events: Final[Counter[str]] = Counter(dict.fromkeys(_EVENTS, 0))
        self._services: Final[set[tuple[str, str]]] = set()
        self._registry: Final = CollectorRegistry()
        self._registry.register(self)
        self._stop: Final = instance.subscribe(
            self._count,
            ActivationEvent,
            ConnectionEvent,
            CorruptedMessage,
            MessageUndeliverable,
        )

    def text(self) -> bytes:
        """Returns the current metrics in the Prometheus text format, encoded in UTF-8."""
        from prometheus_client import generate_latest  # noqa: PLC0415 - an optional dependency

        return generate_latest(self._registry)

    def close(self) -> None:
        """Stops counting events."""
        self._stop()

    def describe(self) -> list[Metric]:
        """Returns one metric, so that a registry refuses a second collector, and does not collect the metrics on registration."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an optional dependency

        return [GaugeMetricFamily("ssbroker_open_connections", "Open connections with other instances.")]

    def collect(self) -> Iterator[Metric]:
        """Yields the current metrics; called by Prometheus.

        Errors in reading the files are not raised: otherwise a registry would have no metrics at all, not even those of the application.
        """
        if self._context.databases_list.is_closed:
            return
        yield from self._process()
        yield from self._databases()
        yield self._write_failures()

    def _process(self) -> Iterator[Metric]:
        """Yields the metrics of this process."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - an optional dependency

        done = self._context.counters.counts()
        for name, help_text in counters.NAMES.items():
            yield CounterMetricFamily(f"ssbroker_{name}", help_text, value=done[name])
        with self._guard:
            events = dict(self._events)
        for name, (_, help_text) in _EVENTS.items():
            yield CounterMetricFamily(f"ssbroker_{name}", help_text, value=events[name])
        yield GaugeMetricFamily(
            "ssbroker_open_connections",
            "Open connections with other instances.",
            value=self._rows_of("sys.dm_broker_connections"),
        )
        server = self._instance.server
        traffic = {} if server is None else server.endpoint.traffic
        for name, (column, help_text) in _TRANSPORT.items():
            yield CounterMetricFamily(f"ssbroker_{name}", help_text, value=traffic.get(column, 0))
        yield CounterMetricFamily(
            "ssbroker_connections_refused",
            "Connections closed before TLS because their address connects too often.",
            value=0 if server is None else server.endpoint.refusals,
        )
        if server is not None and server.credentials is not None:
            yield GaugeMetricFamily(
                "ssbroker_certificate_expiry_timestamp_seconds",
                "Expiry of this instance's certificate, in seconds since 1970, UTC.",
                value=server.credentials.contexts.valid_until.timestamp(),
            )
        sent = {} if server is None else server.endpoint.sent_by_priority
        for priority in LEVELS:
            yield CounterMetricFamily(
                f"ssbroker_message_fragment_p{priority}_sends",
                f"Message fragments of priority {priority} written to connections.",
                value=sent.get(priority, 0),
            )
        rows, waiting_bytes = (0, 0) if server is None else server.endpoint.pending
        yield GaugeMetricFamily(
            "ssbroker_pending_msg_frags_for_send_io",
            "Fragments and acknowledgements waiting to be written.",
            value=rows,
        )
        yield GaugeMetricFamily(
            "ssbroker_pending_bytes_for_send_io",
            "Bytes of the fragments and acknowledgements waiting to be written.",
            value=waiting_bytes,
        )
        yield from self._forwarding()
        running = self._rows_of("sys.dm_broker_activated_tasks")
        yield GaugeMetricFamily("ssbroker_tasks_running", "Queue readers that are running.", value=running)

    def _rows_of(self, view: str) -> int:
        """Returns the number of rows of a view about this process."""
        return sum(1 for _ in self._context.row_sources.get(view, tuple)())

    def _overview(self) -> dict[str, Any]:
        """Returns the state of the databases; if msdb cannot be read, for example because the folder was moved, only this problem."""
        try:
            for database in self._context.databases:
                database.file.check_writable()
            found = overview_of(self._instance)
        except SsbrokerError as error:
            if not self._was_logged:
                self._was_logged = True
                _LOGGER.warning("%s: metrics of the databases are missing: %s", self._context.name, error)
            unknown: dict[str, Any] = dict.fromkeys(_LISTS, ())
            return unknown | {
                "databases": [
                    {"name": MSDB_NAME, "is_broker_enabled": False, "state_desc": "SUSPECT", "problem": str(error)}
                ]
            }
        self._was_logged = False
        return found

    def _write_failures(self) -> Metric:
        """Returns the metric of failed writes, which does not decrease when the disk recovers."""
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - an optional dependency

        family = CounterMetricFamily(
            "ssbroker_database_write_failures",
            "Transactions and test writes of this process that failed because a database could not be written, such as on a full disk.",
            labels=["database"],
        )
        with suppress(SsbrokerError):
            for database in self._context.databases:
                family.add_metric([database.name], database.file.write_failures)
        return family

    def _forwarding(self) -> Iterator[Metric]:
        """Yields the metrics of forwarding. Forwarding counts its messages itself, because there are too many for events."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - an optional dependency

        forwarding = forwarding_of(self._instance) or {}
        for name, help_text in (
            ("messages", "Messages forwarded."),
            ("bytes", "Bytes forwarded."),
            ("messages_discarded", "Messages to be forwarded that were dropped."),
        ):
            yield CounterMetricFamily(f"ssbroker_forwarded_{name}", help_text, value=forwarding.get(name, 0))
        for name, help_text in (
            ("pending_messages", "Messages waiting to be forwarded."),
            ("pending_bytes", "Bytes waiting to be forwarded."),
        ):
            yield GaugeMetricFamily(f"ssbroker_forwarded_{name}", help_text, value=forwarding.get(name, 0))

    def _databases(self) -> Iterator[Metric]:
        """Yields the metrics of the databases, including changes made by other processes."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an optional dependency

        found = self._overview()
        enabled = GaugeMetricFamily(
            "ssbroker_database_enabled", "Whether a database is usable and its broker is enabled.", labels=["database"]
        )
        writable = GaugeMetricFamily(
            "ssbroker_database_writable",
            "Whether a database can be written: the last writes of this process succeeded, and its disk is not almost full.",
            labels=["database"],
        )
        for row in found["databases"]:
            enabled.add_metric([row["name"]], float(row["is_broker_enabled"] and row["state_desc"] == "ONLINE"))
            writable.add_metric([row["name"]], float(row["problem"] is None))
        messages = GaugeMetricFamily(
            "ssbroker_queue_messages",
            "Messages in a queue; those scheduled for later or for a retry are waiting.",
            labels=["database", "queue", "status"],
        )
        is_on = GaugeMetricFamily(
            "ssbroker_queue_enabled",
            "Whether a queue is enabled for enqueue and receive.",
            labels=["database", "queue"],
        )
        for row in found["queues"]:
            for status in _MESSAGE_STATUSES:
                messages.add_metric([row["database"], row["queue"], status], row[status])
            is_on.add_metric(
                [row["database"], row["queue"]], float(row["is_receive_enabled"] and row["is_enqueue_enabled"])
            )
        yield from _queue_states(found["queues"])
        yield _moved(found["queues"], found["moved"])
        yield from _leases(found["leases"])
        conversations = GaugeMetricFamily(
            "ssbroker_conversations", "Conversation endpoints.", labels=["database", "state"]
        )
        for row in found["conversations"]:
            conversations.add_metric([row["database"], row["state"]], row["count"])
        yield from (enabled, writable, messages, is_on, conversations)
        with self._guard:
            rows = [{**row, "to_service_name": self._service_label(row)} for row in found["transmission_queue"]]
        yield from _transmission_queues(rows)

    def _service_label(self, row: dict[str, Any]) -> str:
        """Returns the label for the service of a row; the label of a service stays the same for the life of the process."""
        key = (row["database"], row["to_service_name"])
        if len(self._services) < SERVICES_MAX:
            self._services.add(key)
        return key[1] if key in self._services else _OTHERS

    def _count(self, event: Event) -> None:
        with self._guard:
            self._events.update(name for name, (matches, _) in _EVENTS.items() if matches(event))


def _queue_states(rows: Rows) -> Iterator[Metric]:
    """Yields the ages of the oldest messages, and which queues poison message handling has disabled."""
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an optional dependency

    labels = ["database", "queue"]
    age = GaugeMetricFamily(
        "ssbroker_queue_oldest_seconds",
        "Seconds since the oldest ready message of a queue arrived, or became due; 0 if there is none.",
        labels=labels,
    )
    poisoned = GaugeMetricFamily(
        "ssbroker_queue_poisoned", "Whether poison message handling has disabled a queue.", labels=labels
    )
    for row in rows:
        key = (row["database"], row["queue"])
        age.add_metric(key, row["oldest_seconds"] or 0)
        poisoned.add_metric(key, float(row["problem"] is not None))
    yield from (age, poisoned)


def _moved(queues: Rows, moved: Rows) -> Metric:
    """Returns the metric of conversation groups that failed, by the queue in which they failed."""
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an optional dependency

    family = GaugeMetricFamily(
        "ssbroker_queue_moved_groups",
        "Conversation groups that poison message handling has moved from a queue to another one.",
        labels=["database", "queue"],
    )
    groups: Counter[DatabaseQueue] = Counter({(row["database"], row["queue"]): 0 for row in queues})
    for row in moved:
        groups[row["database"], row["queue"]] += row["groups"]
    for key, number in groups.items():
        family.add_metric(key, number)
    return family


def _leases(rows: Rows) -> Iterator[Metric]:
    """Yields the metrics of conversation groups that are leased, wait for a retry, or have returned to the queue."""
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an optional dependency

    for column, help_text in (
        (
            "groups",
            "Conversation groups that are leased, wait for their retry time, or have returned to the queue and are ready.",
        ),
        (
            "attempts",
            "Leases so far, including retries, of conversation groups that are leased, wait for their retry time, or have returned to the queue.",
        ),
        (
            "failures",
            "Exceptions and lost leases so far of conversation groups that are leased, wait for their retry time, or have returned to the queue.",
        ),
    ):
        family = GaugeMetricFamily(f"ssbroker_lease_{column}", help_text, labels=["database", "queue", "state"])
        for row in rows:
            family.add_metric([row["database"], row["queue"], row["state"]], row[column])
        yield family


def _transmission_queues(rows: list[dict[str, Any]]) -> Iterator[Metric]:
    """Yields the metrics of the transmission queues by error number; labels by status text would be too numerous."""
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an optional dependency

    labels = ["database", "service", "reason"]
    messages: Counter[tuple[str, str, str]] = Counter()
    oldest: dict[tuple[str, str, str], int] = {}
    for row in rows:
        number, _, text = row["transmission_status"].partition(":")
        key = (row["database"], row["to_service_name"], number if text else "")
        messages[key] += row["messages"]
        oldest[key] = max(oldest.get(key, 0), row["oldest_seconds"])
    count = GaugeMetricFamily(
        "ssbroker_transmission_queue_messages", "Messages waiting to be delivered.", labels=labels
    )
    age = GaugeMetricFamily(
        "ssbroker_transmission_queue_oldest_seconds",
        "Age of the oldest message waiting to be delivered, in seconds.",
        labels=labels,
    )
    for key, number_of in messages.items():
        count.add_metric(key, number_of)
        age.add_metric(key, oldest[key])
    yield from (count, age)
