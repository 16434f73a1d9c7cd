"""OpenTelemetry traces of an instance: spans of sends, receives and jobs, linked by the conversation id."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ssbroker.broker.context import JobOutcome, MessageIdentity
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

    The span of a job is the current span while the job runs. If there is no current span, a new span belongs to the
    trace of its conversation, whose trace id is the conversation id. The spans of both endpoints are therefore connected,
    in all processes and instances, although messages carry no trace context. A send within another trace also adds a
    span `create` to the conversation's trace; that span links to the send. Tracing makes sends slower, because it
    disables their fast path.

    Args:
        instance: An open instance.
        tracer_provider: The provider of the tracer; None means the global provider.

    Returns:
        A handle; its `close` stops tracing.

    Raises:
        MissingDependencyError: The library `opentelemetry-api` is not installed.
        OptionError: The instance is already traced.
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
        (['send Jobs', 'process Jobs'], 1)
    """
    context = instance_context(instance)
    if context.tracing is not None:
        raise OptionError("instance: already traced; first close the object that ssbroker.traces returned for it")
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
        self._ids: Final = _ids_of(self._tracer)
        self._stop: Callable[[], None] | None = instance.events.subscribe(self._sent, ConversationEvent)
        instance.tracing = self

    def close(self) -> None:
        """Stops tracing."""
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
    def job(
        self, database: str, queue: str, messages: Iterable[MessageIdentity], *, attempt: int
    ) -> Iterator[JobOutcome]:
        """Makes the span of a job the current span while the job runs; yields a function that records how the job ended."""
        attributes: dict[str, str | int] = {"ssbroker.database": database, "ssbroker.attempt": attempt}
        span = self._start("process", queue, self._trace.SpanKind.CONSUMER, [*messages], attributes)

        def record(outcome: str, failed_with: str | None = None) -> None:
            span.set_attribute("ssbroker.outcome", outcome)
            if failed_with is not None:
                span.set_status(self._trace.StatusCode.ERROR, failed_with)

        with self._trace.use_span(span, end_on_exit=True):
            yield record

    def _sent(self, event: Event) -> None:
        """Adds the span of a SEND, after its commit, in the sending thread.

        In the trace of the conversation, one span represents the message, so that the spans of its receivers have a
        parent: the span of the SEND, or, if that span belongs to another trace, a span `create` that links to it.
        """
        if not isinstance(event, ConversationEvent) or event.step is not ConversationStep.SEND_MESSAGE:
            return
        number = event.message_sequence_number or 0
        identity = MessageIdentity(event.conversation_id.bytes, event.is_initiator, number)
        name, ids = event.far_service_name, self._ids
        attributes: dict[str, str | int] = {
            "ssbroker.database": event.database or "",
            "ssbroker.message_type": event.message_type_name or "",
        }
        if not self._has_current_span and ids is not None:
            self._start_message(ids, "send", name, identity, attributes).end()
            return
        span = self._start("send", name, self._trace.SpanKind.PRODUCER, [identity], attributes)
        if ids is not None:
            link = self._trace.Link(span.get_span_context())
            self._start_message(ids, "create", name, identity, attributes, link).end()
        span.end()

    @property
    def _has_current_span(self) -> bool:
        return self._trace.get_current_span().get_span_context().is_valid

    def _start(
        self, operation: str, name: str, kind: Any, messages: list[MessageIdentity], attributes: dict[str, str | int]
    ) -> Span:
        """Starts a span: in the current trace, with links to the messages; or, without a current trace, in the trace of the conversation."""
        described = self._described(operation, name, messages, attributes)
        context = None
        if not self._has_current_span:
            context = self._trace.set_span_in_context(self._trace.NonRecordingSpan(self._context_of(messages[0])))
        links: list[Link] = [self._trace.Link(self._context_of(one)) for one in messages]
        return self._tracer.start_span(f"{operation} {name}", context, kind, attributes=described, links=links)

    def _start_message(
        self,
        ids: _MessageIds,
        operation: str,
        name: str,
        message: MessageIdentity,
        attributes: dict[str, str | int],
        *links: Link,
    ) -> Span:
        """Starts the span that has the ids of a message and no parent."""
        described = self._described(operation, name, [message], attributes)
        no_parent = self._trace.set_span_in_context(self._trace.INVALID_SPAN)
        with ids.replaced(self._context_of(message)):
            return self._tracer.start_span(
                f"{operation} {name}", no_parent, self._trace.SpanKind.PRODUCER, attributes=described, links=links
            )

    def _described(
        self, operation: str, name: str, messages: list[MessageIdentity], attributes: dict[str, str | int]
    ) -> dict[str, str | int]:
        first = messages[0]
        described: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": name,
            "messaging.message.conversation_id": first.conversation,
            "ssbroker.instance": self._instance.name,
            **attributes,
        }
        if operation in ("receive", "process"):
            described["messaging.batch.message_count"] = len(messages)
        if len(messages) == 1:
            described["messaging.message.id"] = str(first)
        return described

    def _context_of(self, message: MessageIdentity) -> SpanContext:
        """Returns the context that represents a message: both sides can compute its ids, so nothing has to be transmitted."""
        digest = hashlib.sha256(bytes(message)).digest()
        return self._trace.SpanContext(
            trace_id=int.from_bytes(message.conversation_id) or 1,
            span_id=int.from_bytes(digest[:8]) or 1,
            is_remote=True,
            trace_flags=self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED),
        )


class _MessageIds:
    """Generates the ids of an SDK's tracer; the ids of a message can replace them, for which the API of OpenTelemetry has no function."""

    def __init__(self, generator: Any) -> None:
        self._generator: Final = generator
        self._thread: Final = threading.local()

    @contextmanager
    def replaced(self, context: SpanContext) -> Iterator[None]:
        """Uses the ids of a context for a span that this thread starts in the block."""
        self._thread.context = context
        try:
            yield
        finally:
            self._thread.context = None

    def generate_trace_id(self) -> int:
        """Returns the trace id of a new root span; the SDK calls this method."""
        context: SpanContext | None = getattr(self._thread, "context", None)
        return int(self._generator.generate_trace_id() if context is None else context.trace_id)

    def generate_span_id(self) -> int:
        """Returns the id of a new span; the SDK calls this method."""
        context: SpanContext | None = getattr(self._thread, "context", None)
        return int(self._generator.generate_span_id() if context is None else context.span_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def _ids_of(tracer: Any) -> _MessageIds | None:
    """Makes the ids of a tracer replaceable; returns None if the tracer does not come from an SDK with an id generator."""
    generator = getattr(tracer, "id_generator", None)
    if generator is None or isinstance(generator, _MessageIds):
        return generator
    tracer.id_generator = _MessageIds(generator)
    return tracer.id_generator  # type: ignore[no-any-return]  # the object that was assigned
