"""OpenTelemetry traces of an instance: spans of sends, receives and jobs, linked by the conversation id."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ssbroker.broker.context import MessageIdentity
from ssbroker.broker.instance import instance_context
from ssbroker.exceptions import MissingDependencyError, OptionError
from ssbroker.protocol.events import ConversationEvent, ConversationStep, Event

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, TracerProvider

    from ssbroker.broker.context import InstanceContext
    from ssbroker.broker.instance import Instance

_SYSTEM: Final = "ssbroker"


def traces(instance: Instance, *, tracer_provider: TracerProvider | None = None) -> Traces:
    """Traces an instance with OpenTelemetry: a span for each SEND, each RECEIVE that returned messages, and each job.

    The span of a job is the current one while the job runs. A span whose thread or task has no current span belongs to the trace of its
    conversation, whose id is the conversation id; each span links to that trace. So the spans of both sides are connected, in all
    processes and instances, and nothing about traces is transmitted. While an instance is traced, sends take the slower path in Python.

    Args:
        instance: An open instance.
        tracer_provider: The provider of the tracer; None means the global one.

    Returns:
        The tracing; call `close` to stop it.

    Raises:
        MissingDependencyError: The library `opentelemetry-api` is not installed.
        OptionError: The instance is traced already.
        SchemaError: `instance` is not an `Instance`.

    Examples:
        >>> import tempfile, ssbroker
        >>> from opentelemetry.sdk.trace import TracerProvider
        >>> from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        >>> from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        >>> exporter, provider = InMemorySpanExporter(), TracerProvider()
        >>> provider.add_span_processor(SimpleSpanProcessor(exporter))
        >>> with tempfile.TemporaryDirectory() as folder, ssbroker.Instance.open(folder, create=True) as instance:
        ...     traces = ssbroker.traces(instance, tracer_provider=provider)
        ...     queue = instance.queue("Jobs")
        ...     _ = queue.put(b"two chairs")
        ...     with queue.take() as job:
        ...         pass
        ...     traces.close()
        >>> [span.name for span in exporter.get_finished_spans()], len({span.context.trace_id for span in exporter.get_finished_spans()})
        (['send DEFAULT', 'process Jobs'], 1)
    """
    context = instance_context(instance)
    if context.tracing is not None:
        raise OptionError("instance: it is traced already; close the other traces first")
    return Traces(context, tracer_provider)


class Traces:
    """The traces of an instance; `ssbroker.traces` returns it."""

    def __init__(self, instance: InstanceContext, tracer_provider: TracerProvider | None) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise MissingDependencyError(
                "traces need the API of OpenTelemetry: pip install opentelemetry-api, and an SDK that exports spans",
                name="opentelemetry",
            ) from error
        self._trace: Final = trace
        self._instance: Final = instance
        self._tracer: Final = trace.get_tracer(_SYSTEM, tracer_provider=tracer_provider)
        self._stop: Callable[[], None] | None = instance.events.subscribe(self._sent, ConversationEvent)
        instance.tracing = self

    def close(self) -> None:
        """Ends the traces."""
        if self._stop is not None:
            self._stop()
            self._stop = None
            self._instance.tracing = None

    def received(self, database: str, queue: str, messages: Iterable[MessageIdentity]) -> None:
        """Adds the span of a RECEIVE that returned messages."""
        identities = [*messages]
        if identities:
            kind = self._trace.SpanKind.CLIENT
            self._start("receive", queue, kind, identities, {"ssbroker.database": database}).end()

    @contextmanager
    def job(self, database: str, queue: str, messages: Iterable[MessageIdentity], *, attempt: int) -> Iterator[None]:
        """Makes the span of a job the current one while it runs."""
        attributes: dict[str, str | int] = {"ssbroker.database": database, "ssbroker.attempt": attempt}
        span = self._start("process", queue, self._trace.SpanKind.CONSUMER, [*messages], attributes)
        with self._trace.use_span(span, end_on_exit=True):
            yield

    def _sent(self, event: Event) -> None:
        """Adds the span of a SEND, when it is committed, in the thread that has sent."""
        if not isinstance(event, ConversationEvent) or event.step is not ConversationStep.SEND_MESSAGE:
            return
        number = event.message_sequence_number or 0
        identity = MessageIdentity(event.conversation_id.bytes, event.is_initiator, number)
        name = event.message_type_name or ""
        attributes: dict[str, str | int] = {"ssbroker.database": event.database or "", "ssbroker.message_type": name}
        self._start("send", name, self._trace.SpanKind.PRODUCER, [identity], attributes).end()

    def _start(
        self, operation: str, name: str, kind: Any, messages: list[MessageIdentity], attributes: dict[str, str | int]
    ) -> Span:
        """Starts a span that belongs to the current trace with links to the messages; or else to the trace of the conversation."""
        first = messages[0]
        described: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.message.conversation_id": first.conversation,
            "ssbroker.instance": self._instance.name,
            **attributes,
        }
        if operation != "send":
            described["messaging.destination.name"] = name
            described["messaging.batch.message_count"] = len(messages)
        if len(messages) == 1:
            described["messaging.message.id"] = str(first)
        context = None
        if not self._trace.get_current_span().get_span_context().is_valid:
            context = self._trace.set_span_in_context(self._trace.NonRecordingSpan(self._context_of(first)))
        links: list[Link] = [self._trace.Link(self._context_of(one)) for one in messages]
        return self._tracer.start_span(f"{operation} {name}", context, kind, attributes=described, links=links)

    def _context_of(self, message: MessageIdentity) -> SpanContext:
        """Returns the context that stands for a message: both sides know its ids, so that nothing has to be transmitted."""
        digest = hashlib.sha256(bytes(message)).digest()
        return self._trace.SpanContext(
            trace_id=int.from_bytes(message.conversation_id) or 1,
            span_id=int.from_bytes(digest[:8]) or 1,
            is_remote=True,
            trace_flags=self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED),
        )
