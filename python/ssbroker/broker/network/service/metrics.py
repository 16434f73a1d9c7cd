"""The numbers of an instance for Prometheus, under Service Broker's names for its counters (facts 168 to 170, N28)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ssbroker.broker import counters
from ssbroker.broker.network.carriage.holding import Counters
from ssbroker.broker.objects.priorities import LEVELS
from ssbroker.broker.overview import overview_of
from ssbroker.exceptions import MissingDependencyError
from ssbroker.protocol.event_steps import ActivationStep, ConnectionStep
from ssbroker.protocol.events import (
    Activation,
    Connection,
    CorruptedMessage,
    Event,
    MessageUndeliverable,
)

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from ssbroker.broker.instance import Instance

_TRANSPORT: Final = {
    "transport_send_ios": ("total_sends", "Writes to connections of other instances."),
    "transport_receive_ios": ("total_receives", "Reads from connections of other instances."),
    "transport_send_bytes": ("total_bytes_sent", "Bytes written to connections of other instances."),
    "transport_receive_bytes": ("total_bytes_received", "Bytes read from connections of other instances."),
    "message_fragment_sends": ("total_fragments_sent", "Fragments of messages written to connections."),
    "message_fragment_receives": ("total_fragments_received", "Fragments of messages read from connections."),
}
_EVENTS: Final[dict[str, tuple[Callable[[Event], bool], str]]] = {
    "corrupted_messages": (lambda event: isinstance(event, CorruptedMessage), "Fragments that were damaged or forged."),
    "dropped_messages": (
        lambda event: isinstance(event, MessageUndeliverable),
        "Arrived messages that nothing here takes.",
    ),
    "tasks_started": (
        lambda event: isinstance(event, Activation) and event.step is ActivationStep.STARTED,
        "Readers of queues that were started.",
    ),
    "tasks_aborted": (
        lambda event: isinstance(event, Activation) and event.step is ActivationStep.ABORTED,
        "Readers of queues that ended with an exception.",
    ),
    "connections_failed": (
        lambda event: (
            isinstance(event, Connection) and (event.step is ConnectionStep.CONNECT_FAILED or event.error != 0)
        ),
        "Connections to other instances that could not be made, were refused or broke.",
    ),
}
_STATES: Final = ("ready", "incomplete", "retained")
SERVICES: Final = 1000
"""The services for which something waits that are told apart; all further ones are one. Neighbours name those that answers go to."""
_OTHERS: Final = "(others)"


class Metrics:
    """Counts from now on what happens in an instance, and reads what stands in its files when it is asked.

    Args:
        instance: The instance.

    Raises:
        MissingDependencyError: `prometheus_client` is not installed.

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
            from prometheus_client.core import CollectorRegistry  # noqa: PLC0415 - only who serves needs it
        except ImportError as error:
            raise MissingDependencyError(
                "metrics need prometheus-client: pip install 'ssbroker[broker]'", name="prometheus_client"
            ) from error
        self._instance: Final = instance
        self._guard: Final = threading.RLock()
        self._events: Final[Counter[str]] = Counter(dict.fromkeys(_EVENTS, 0))
        self._services: Final[set[tuple[str, str]]] = set()
        self._registry: Final = CollectorRegistry()
        self._registry.register(self)
        self._stop: Final = instance.subscribe(
            self._count,
            Activation,
            Connection,
            CorruptedMessage,
            MessageUndeliverable,
        )

    def text(self) -> bytes:
        """The numbers of now, as Prometheus reads them.

        Returns:
            The text, in UTF-8.

        Raises:
            StorageError: A file cannot be read.
        """
        from prometheus_client import generate_latest  # noqa: PLC0415 - only who serves needs it

        return generate_latest(self._registry)

    def close(self) -> None:
        """Counts no more."""
        self._stop()

    def describe(self) -> list[Metric]:
        """Nothing: Prometheus asks for the numbers only when it wants them."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The numbers of now; Prometheus calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - as above

        done = self._instance.worker.counters.counts()
        for name, meaning in counters.NAMES.items():
            yield CounterMetricFamily(f"ssbroker_{name}", meaning, value=done[name])
        with self._guard:
            events = dict(self._events)
        for name, (_, meaning) in _EVENTS.items():
            yield CounterMetricFamily(f"ssbroker_{name}", meaning, value=events[name])
        yield GaugeMetricFamily(
            "ssbroker_open_connections",
            "Connections to other instances that are open.",
            value=self._instance.view("sys.dm_broker_connections").num_rows,
        )
        server = self._instance.server
        traffic = {} if server is None else server.endpoint.traffic
        for name, (column, meaning) in _TRANSPORT.items():
            yield CounterMetricFamily(f"ssbroker_{name}", meaning, value=traffic.get(column, 0))
        yield CounterMetricFamily(
            "ssbroker_connections_refused",
            "Connections that were cut off before TLS, since their address dials too often.",
            value=0 if server is None else server.endpoint.refusals,
        )
        if server is not None and server.credentials is not None:
            yield GaugeMetricFamily(
                "ssbroker_certificate_expiry_timestamp_seconds",
                "When the certificate of this instance ends, in seconds since 1970, UTC.",
                value=server.credentials.contexts.ends.timestamp(),
            )
        sent = {} if server is None else server.endpoint.sent_by_priority
        for priority in LEVELS:
            yield CounterMetricFamily(
                f"ssbroker_message_fragment_p{priority}_sends",
                f"Fragments of messages of priority {priority} written to connections.",
                value=sent.get(priority, 0),
            )
        rows, held = (0, 0) if server is None else server.endpoint.pending
        yield GaugeMetricFamily(
            "ssbroker_pending_msg_frags_for_send_io",
            "Fragments and acknowledgements that wait to be written.",
            value=rows,
        )
        yield GaugeMetricFamily(
            "ssbroker_pending_bytes_for_send_io", "What those count that wait, in bytes.", value=held
        )
        yield from self._forwarded()
        running = self._instance.view("sys.dm_broker_activated_tasks").num_rows
        yield GaugeMetricFamily("ssbroker_tasks_running", "Readers of queues that run now.", value=running)
        yield from self._files()

    def _forwarded(self) -> Iterator[Metric]:
        """What was passed on for others: counted where that is done, since there are too many for events."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - as above

        server = self._instance.server
        passed, pending = (
            (Counters(), (0, 0)) if server is None else (server.forwarding.counters, server.forwarding.pending)
        )
        for name, meaning, value in (
            ("messages", "Messages that were passed on.", passed.messages),
            ("bytes", "Bytes that were passed on.", passed.bytes),
            ("messages_discarded", "Messages that should have been passed on and were dropped.", passed.discarded),
        ):
            yield CounterMetricFamily(f"ssbroker_forwarded_{name}", meaning, value=value)
        messages, held = pending
        yield GaugeMetricFamily(
            "ssbroker_forwarded_pending_messages", "Messages that wait to be passed on.", value=messages
        )
        yield GaugeMetricFamily("ssbroker_forwarded_pending_bytes", "Bytes that wait to be passed on.", value=held)

    def _files(self) -> Iterator[Metric]:
        """What stands in the files, whichever process put it there."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - as above

        found = overview_of(self._instance)
        enabled = GaugeMetricFamily(
            "ssbroker_database_enabled", "Whether a database can be used and sends and receives.", labels=["database"]
        )
        for row in found["databases"]:
            enabled.add_metric([row["name"]], float(row["is_broker_enabled"] and row["state_desc"] == "ONLINE"))
        messages = GaugeMetricFamily(
            "ssbroker_queue_messages", "Messages in a queue.", labels=["database", "queue", "status"]
        )
        is_on = GaugeMetricFamily(
            "ssbroker_queue_enabled", "Whether a queue takes and gives messages.", labels=["database", "queue"]
        )
        for row in found["queues"]:
            for status in _STATES:
                messages.add_metric([row["database"], row["queue"], status], row[status])
            is_on.add_metric(
                [row["database"], row["queue"]], float(row["is_receive_enabled"] and row["is_enqueue_enabled"])
            )
        conversations = GaugeMetricFamily(
            "ssbroker_conversations", "Ends of conversations.", labels=["database", "state"]
        )
        for row in found["conversations"]:
            conversations.add_metric([row["database"], row["state"]], row["count"])
        yield from (enabled, messages, is_on, conversations)
        with self._guard:
            waiting = [{**row, "to_service_name": self._told_apart(row)} for row in found["transmission_queue"]]
        yield from _waiting(waiting)

    def _told_apart(self, row: dict[str, Any]) -> str:
        """The service of a row, as it is called in the figures for as long as the process lives."""
        key = (row["database"], row["to_service_name"])
        if len(self._services) < SERVICES:
            self._services.add(key)
        return key[1] if key in self._services else _OTHERS

    def _count(self, event: Event) -> None:
        with self._guard:
            self._events.update(name for name, (is_one, _) in _EVENTS.items() if is_one(event))


def _waiting(rows: list[dict[str, Any]]) -> Iterator[Metric]:
    """What waits to be delivered, by Service Broker's number of why; the words of a status would be a label of their own each."""
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - as above

    labels = ["database", "service", "reason"]
    messages: Counter[tuple[str, str, str]] = Counter()
    oldest: dict[tuple[str, str, str], int] = {}
    for row in rows:
        number, _, words = row["transmission_status"].partition(":")
        key = (row["database"], row["to_service_name"], number if words else "")
        messages[key] += row["messages"]
        oldest[key] = max(oldest.get(key, 0), row["oldest_seconds"])
    count = GaugeMetricFamily(
        "ssbroker_transmission_queue_messages", "Messages that wait to be delivered.", labels=labels
    )
    age = GaugeMetricFamily(
        "ssbroker_transmission_queue_oldest_seconds", "For how long the oldest of them has waited.", labels=labels
    )
    for key, number_of in messages.items():
        count.add_metric(key, number_of)
        age.add_metric(key, oldest[key])
    yield from (count, age)
