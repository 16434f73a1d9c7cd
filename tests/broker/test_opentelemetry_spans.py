"""OpenTelemetry traces: send, receive and work find each other across processes and instances."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import ssbroker
from ssbroker import Database, Instance, Job, LeaseLostError, MissingDependencyError, OptionError
from ssbroker.broker.database import database_context
from tests.broker.conftest import QUEUE, TARGET, Clock

Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def spans(instance: Instance, exporter: InMemorySpanExporter, provider: TracerProvider) -> Iterator[Spans]:
    """Returns the spans that ended since the last call."""
    traces = ssbroker.traces(instance, tracer_provider=provider)

    def ended() -> list[ReadableSpan]:
        found = [*exporter.get_finished_spans()]
        exporter.clear()
        return found

    yield ended
    traces.close()


def send(database: Database, *bodies: bytes) -> uuid.UUID:
    with database.transaction() as t:
        dialog = t.begin_dialog("//Shop", TARGET)
        for body in bodies:
            t.send(dialog, body)
    return dialog


def conversation_of(instance: Instance) -> bytes:
    (conversation,) = {*instance.view("sys.conversation_endpoints")["conversation_id"].to_pylist()}
    assert isinstance(conversation, bytes)
    return conversation


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def test_send_receive_and_work_of_a_message_are_one_trace(instance: Instance, sales: Database, spans: Spans) -> None:
    """Its id is the conversation id, so that nothing has to travel with the message."""
    send(sales, b"one")
    conversation = conversation_of(instance)
    with sales.take(QUEUE) as job:
        job.retry()
    with sales.transaction() as t:
        assert t.receive_one(QUEUE)
    sent, processed, received = spans()
    assert [one.name for one in (sent, processed, received)] == [
        f"send {TARGET}",
        f"process {QUEUE}",
        f"receive {QUEUE}",
    ]
    assert [one.kind for one in (sent, processed, received)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]
    assert {trace_id(one) for one in (sent, processed, received)} == {int.from_bytes(conversation)}
    assert (parent(sent), links(sent)) == (None, [])
    assert parent(processed) == parent(received) == ids(sent)
    assert links(processed) == links(received) == [ids(sent)]


def test_each_message_of_both_directions_has_its_own_context(sales: Database, spans: Spans) -> None:
    send(sales, b"one", b"two")
    with sales.take(QUEUE) as job, job.transaction() as t:
        t.send(job.messages[0].conversation_handle, b"reply")
    first, second, reply, created, processed = spans()
    assert links(processed) == [ids(first), ids(second)]
    assert links(created) == [ids(reply)]
    assert links(reply) == [ids(created)]
    assert len({ids(one) for one in (first, second, created)}) == 3
    assert {trace_id(one) for one in (first, second, created, processed)} == {trace_id(first)}


def test_within_a_span_of_the_application(sales: Database, spans: Spans, provider: TracerProvider) -> None:
    """Spans stay in its trace; a span in the trace of the conversation links to the send, and is the parent of the job."""
    tracer = provider.get_tracer("shop")
    with tracer.start_as_current_span("order") as order:
        send(sales, b"one")
    with sales.take(QUEUE), tracer.start_as_current_span("reserve"):
        pass
    created, sent, ordered, reserved, processed = spans()
    assert ordered.context == order.get_span_context()
    assert parent(sent) == (trace_id(ordered), order.get_span_context().span_id)
    assert (created.name, parent(created), links(created)) == (f"create {TARGET}", None, [ids(sent)])
    assert parent(processed) == ids(created)
    assert links(sent) == links(processed) == [ids(created)]
    assert processed.context is not None
    assert parent(reserved) == (trace_id(processed), processed.context.span_id)


def test_what_a_job_sends_belongs_to_its_trace(sales: Database, spans: Spans) -> None:
    send(sales, b"one")
    with sales.take(QUEUE) as job, job.transaction() as t:
        t.send(t.begin_dialog(TARGET, "//Shop"), b"another conversation")
    _, created, sent, processed = spans()
    assert processed.context is not None
    assert parent(sent) == (trace_id(processed), processed.context.span_id)
    assert links(sent) == [ids(created)]
    assert trace_id(created) != trace_id(processed)


def test_attributes(instance: Instance, sales: Database, spans: Spans) -> None:
    send(sales, b"one")
    conversation = conversation_of(instance)
    name = str(uuid.UUID(bytes=conversation))
    with sales.take(QUEUE):
        pass
    sent, processed = (dict(one.attributes or {}) for one in spans())
    common = {
        "messaging.system": "ssbroker",
        "messaging.message.conversation_id": name,
        "messaging.message.id": f"{name}/initiator/0",
        "ssbroker.instance": "shop",
        "ssbroker.database": "Sales",
    }
    operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert sent == {
        **common,
        **operation,
        "messaging.destination.name": TARGET,
        "ssbroker.message_type": "DEFAULT",
    }
    assert processed == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": QUEUE,
        "messaging.batch.message_count": 1,
        "ssbroker.attempt": 1,
        "ssbroker.outcome": "acknowledge",
    }


@pytest.mark.parametrize("is_traced_by_sdk", [True, False])
def test_how_a_job_ended(
    sales: Database, spans: Spans, monkeypatch: pytest.MonkeyPatch, *, is_traced_by_sdk: bool
) -> None:
    if not is_traced_by_sdk:
        monkeypatch.setattr(database_context(sales).instance.tracing, "_ids", None)
    ends: dict[str, Callable[[Job], object]] = {
        "acknowledge": lambda _: None,
        "retry": lambda job: job.retry(),
        "fail": lambda job: job.fail("no such planet"),
    }
    found = []
    send(sales, b"one")
    send(sales, b"two")
    (sent, _) = spans()
    for end in ("retry", "acknowledge", "fail"):
        with sales.take(QUEUE) as job:
            ends[end](job)
        (span,) = spans()
        found.append(
            (dict(span.attributes or {})["ssbroker.outcome"], span.status.status_code, span.status.description)
        )
    assert (parent(sent) is None) == is_traced_by_sdk
    assert found == [
        ("retry", StatusCode.UNSET, None),
        ("acknowledge", StatusCode.UNSET, None),
        ("fail", StatusCode.ERROR, "no such planet"),
    ]


def test_a_rolled_back_send_has_no_span(sales: Database, spans: Spans) -> None:
    with pytest.raises(ZeroDivisionError), sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", TARGET), b"one")
        raise ZeroDivisionError
    assert spans() == []


def test_an_empty_receive_has_no_span(sales: Database, spans: Spans) -> None:
    with sales.transaction() as t:
        assert t.receive_one(QUEUE) is None
        assert t.receive(QUEUE).num_rows == 0
    with sales.take(QUEUE, timeout=0) as job:
        assert not job
    assert spans() == []


def test_the_error_of_a_job_is_that_of_its_span(sales: Database, spans: Spans) -> None:
    send(sales, b"one")
    with pytest.raises(ZeroDivisionError, match="no price"), sales.take(QUEUE):
        raise ZeroDivisionError("no price")
    _, processed = spans()
    assert processed.status.status_code is StatusCode.ERROR
    assert dict(processed.attributes or {})["ssbroker.outcome"] == "give back"
    assert [event.name for event in processed.events] == ["exception"]


def test_a_lease_that_is_lost_at_the_end_is_an_error_of_the_span(sales: Database, spans: Spans, clock: Clock) -> None:
    send(sales, b"one")
    with suppress(LeaseLostError), sales.take(QUEUE, lease=60):
        clock.advance(seconds=61)
        with sales.take(QUEUE):
            pass
    _, second, first = spans()
    assert (second.status.status_code, first.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert (dict(second.attributes or {})["ssbroker.attempt"], dict(first.attributes or {})["ssbroker.attempt"]) == (
        2,
        1,
    )


class FailingStart(SpanProcessor):
    """Fails at the start of the span of a receive or a job."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.name.startswith(("process", "receive")):
            raise self.error("no spans today")


@pytest.fixture
def failing_start(
    instance: Instance, sales: Database, provider: TracerProvider, request: pytest.FixtureRequest
) -> Iterator[None]:
    provider.add_span_processor(FailingStart(request.param))
    traces = ssbroker.traces(instance, tracer_provider=provider)
    send(sales, b"two chairs")
    yield
    traces.close()


@pytest.mark.parametrize("failing_start", [RuntimeError], indirect=True)
@pytest.mark.usefixtures("failing_start")
def test_a_job_runs_without_a_span_if_tracing_fails(
    instance: Instance, sales: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with sales.take(QUEUE, timeout=0) as job:
        assert job.message.message_body == b"two chairs"
    assert instance.view(f"dbo.{QUEUE}").num_rows == 0
    expected = (
        "Sales: the tracing span of a job could not be started; the job runs without it: RuntimeError: no spans today"
    )
    assert expected in caplog.text


@pytest.mark.parametrize("failing_start", [RuntimeError], indirect=True)
@pytest.mark.usefixtures("failing_start")
@pytest.mark.parametrize("call", ["receive", "receive_one"])
def test_messages_are_received_without_a_span_if_tracing_fails(
    sales: Database, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    with sales.transaction() as t:
        found = t.receive(QUEUE) if call == "receive" else t.receive_one(QUEUE)
    assert found is not None
    expected = "Sales: the tracing span of a receive could not be recorded; the messages are received without it: RuntimeError: no spans today"
    assert expected in caplog.text


@pytest.mark.parametrize("failing_start", [KeyboardInterrupt], indirect=True)
@pytest.mark.usefixtures("failing_start")
def test_an_interrupt_before_the_block_of_a_job_gives_its_messages_back(instance: Instance, sales: Database) -> None:
    with pytest.raises(KeyboardInterrupt), sales.take(QUEUE, timeout=0):
        pytest.fail("the block does not run")
    assert instance.view("sys.dm_broker_leases")["state"].to_pylist() == ["READY"]
    assert instance.view(f"dbo.{QUEUE}").num_rows == 1


class FailingProcessor(SpanProcessor):
    """Fails at the end of the span of a job."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def on_end(self, span: ReadableSpan) -> None:
        if span.name.startswith("process"):
            raise self.error


def test_a_lost_lease_is_raised_if_tracing_fails_too(
    instance: Instance, sales: Database, provider: TracerProvider, clock: Clock
) -> None:
    provider.add_span_processor(FailingProcessor(RuntimeError))
    traces = ssbroker.traces(instance, tracer_provider=provider)
    send(sales, b"two chairs")
    with pytest.raises(LeaseLostError), sales.take(QUEUE, lease=60):
        clock.advance(seconds=61)
        with sales.take(QUEUE):
            pass
    traces.close()
    assert instance.view(f"dbo.{QUEUE}").num_rows == 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_only_an_interrupt_at_the_end_of_a_span_ends_the_job(
    instance: Instance, sales: Database, provider: TracerProvider, error: type[BaseException]
) -> None:
    """The messages are acknowledged already; a failure of tracing is no failure of the job, but Ctrl+C is not lost."""

    provider.add_span_processor(FailingProcessor(error))
    traces = ssbroker.traces(instance, tracer_provider=provider)
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", TARGET), b"two chairs")
    with pytest.raises(error) if error is KeyboardInterrupt else nullcontext(), sales.take(QUEUE, timeout=0):
        pass
    traces.close()
    assert instance.view(f"dbo.{QUEUE}").num_rows == 0


def test_the_span_of_a_coroutine_is_that_of_its_task(
    instance: Instance, sales: Database, spans: Spans, provider: TracerProvider
) -> None:
    del instance
    send(sales, b"one")
    send(sales, b"two")
    tracer = provider.get_tracer("shop")

    async def work() -> None:
        async with sales.take(QUEUE, timeout=0) as job:
            assert job
            await asyncio.sleep(0)
            with tracer.start_as_current_span("inner"):
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(work(), work())

    asyncio.run(both())
    found = spans()
    processed = [one for one in found if one.name.startswith("process")]
    inner = [one for one in found if one.name == "inner"]
    assert {parent(one) for one in inner} == {(trace_id(one), one.context.span_id) for one in processed if one.context}
    assert len({trace_id(one) for one in processed}) == 2


def test_spans_of_two_processes_are_one_trace(instance: Instance, spans: Spans) -> None:
    instance.queue("Jobs")
    program = (
        "import json, sys, ssbroker\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
        "exporter, provider = InMemorySpanExporter(), TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(exporter))\n"
        "with ssbroker.Instance.open(sys.argv[1], background=False) as instance:\n"
        "    ssbroker.traces(instance, tracer_provider=provider)\n"
        "    instance.queue('Jobs').put(b'one')\n"
        "    (span,) = exporter.get_finished_spans()\n"
        "    print(json.dumps([span.context.trace_id, span.context.span_id]))\n"
    )
    child = subprocess.run([sys.executable, "-c", program, str(instance.folder)], capture_output=True, check=True)
    with instance.queue("Jobs").take():
        pass
    (processed,) = spans()
    assert parent(processed) == tuple(json.loads(child.stdout))


def test_spans_of_two_instances_are_one_trace(
    tmp_path: Path, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    with (
        Instance.create(tmp_path / "shop", name="shop") as shop,
        Instance.create(tmp_path / "stock", name="stock") as stock,
    ):
        for instance, queue, service in ((shop, "Replies", "//Shop"), (stock, "Orders", "//Stock")):
            database = instance.create_database("D")
            database.create_queue(queue)
            database.create_service(service, queue=queue)
        with (
            shop.serve(host="127.0.0.1", port=0, allow_unencrypted=True) as shop_server,
            stock.serve(host="127.0.0.1", port=0, allow_unencrypted=True) as stock_server,
        ):
            shop.database("D").create_route("Stock", service_name="//Stock", address=stock_server.address)
            stock.database("D").create_route("Shop", service_name="//Shop", address=shop_server.address)
            traced = [ssbroker.traces(each, tracer_provider=provider) for each in (shop, stock)]
            with shop.database("D").transaction() as t:
                t.send(t.begin_dialog("//Shop", "//Stock", encryption=False), b"two chairs")
            with stock.database("D").take("Orders", timeout=60) as job, job.transaction() as t:
                t.send(job.messages[0].conversation_handle, b"reserved")
            with shop.database("D").take("Replies", timeout=60) as job:
                assert job.value == b"reserved"
            for each in traced:
                each.close()
    found = exporter.get_finished_spans()
    assert [one.name for one in found] == [
        "send //Stock",
        "create //Shop",
        "send //Shop",
        "process Orders",
        "process Replies",
    ]
    assert len({trace_id(one) for one in found}) == 1
    order, created, reply, ordered, replied = found
    assert parent(ordered) == ids(order)
    assert parent(reply) == ids(ordered)
    assert parent(replied) == ids(created)
    owners = [dict(one.attributes or {})["ssbroker.instance"] for one in found]
    assert owners == ["shop", "stock", "stock", "stock", "shop"]


def test_an_instance_is_traced_once_until_it_is_closed(
    instance: Instance, sales: Database, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    traces = ssbroker.traces(instance, tracer_provider=provider)
    with pytest.raises(OptionError, match="instance: already traced"):
        ssbroker.traces(instance)
    traces.close()
    traces.close()
    send(sales, b"one")
    with sales.take(QUEUE):
        pass
    assert exporter.get_finished_spans() == ()
    ssbroker.traces(instance, tracer_provider=provider).close()


def test_the_library_is_needed_only_for_traces(tmp_path: Path) -> None:
    program = (
        "import sys, ssbroker\n"
        "with ssbroker.Instance.open(sys.argv[1], create=True) as instance:\n"
        "    queue = instance.queue('Jobs'); queue.put(b'one')\n"
        "    with queue.take(): pass\n"
        "    assert 'opentelemetry' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "shop")], check=True)


def test_a_missing_library_is_named(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingDependencyError, match="pip install opentelemetry-api"):
        ssbroker.traces(instance)
