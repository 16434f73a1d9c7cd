"""The parts of the data source `ssbroker`, without Spark: options, filters, partitions and staged files."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark

import ssbroker
from ssbroker import BrokerError, InputError, OptionError, SchemaError
from ssbroker.broker.dialogs.bulk_send import NumberedBatch
from ssbroker.broker.views import DATABASE_VIEWS, INSTANCE_VIEWS
from ssbroker.spark.source import reader, writer
from ssbroker.spark.source.options import ddl, parse_read_options, parse_write_options, select_columns
from ssbroker.spark.source.reader import Inline, Offset, Scan, Slice, Tail
from ssbroker.spark.source.writer import Sink
from tests.spark.source.instances import TO_ORDERS, bodies, create_instance, dialogs, receive, send

COLUMNS = {"message_body": "binary"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create_instance(tmp_path / "shop")


def scan_of(folder: Path, **options: str) -> Scan:
    parsed = parse_read_options({"path": str(folder), **options})
    return Scan.of(parsed, parsed.schema())


def read_all(scan: Scan) -> list[dict[str, Any]]:
    """Reads all rows, each partition as in a worker of its own."""
    plan = pickle.dumps((scan, scan.parts()))
    there, parts = pickle.loads(plan)
    return [row for part in parts for batch in there.rows(part) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option path is required"),
        (
            {"path": "x"},
            "view and queue: expected either a view, such as sys.routes, or a queue, such as dbo.Orders, got neither",
        ),
        ({"path": "s3://bucket/shop", "queue": "q"}, "path: 's3://bucket/shop' is a URI"),
        ({"path": "x", "view": "sys.routes", "queue": "q"}, "such as dbo.Orders, got both"),
        ({"path": "x", "view": "sys.rotes"}, "unknown view 'sys.rotes'; expected one of sys.certificates"),
        ({"path": "x", "queue": "sys.routes"}, "'sys.routes' is a view; use the option view"),
        ({"path": "x", "queue": "q", "colums": "a"}, "unknown option colums; expected one of path, view"),
        ({"path": "x", "queue": "q", "pushdown": "1"}, "pushdown: expected true or false, got '1'"),
        ({"path": "x", "queue": "q", "starting": "now"}, "starting: expected 'earliest' or 'latest'"),
        (
            {"path": "x", "queue": "q", "max_rows_per_batch": "0"},
            "an integer from 1 to 9223372036854775807, got '0'",
        ),
    ],
)
def test_invalid_read_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises((OptionError, InputError), match=message):
        parse_read_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "x"}, "option database is required"),
        ({"path": "x", "database": "d", "query_id": "q"}, "batch_id: the option is missing"),
        ({"path": "x", "database": "d", "view": "sys.routes"}, "unknown option view"),
        ({"path": "x", "database": "d", "lifetime": "soon"}, "lifetime: expected an integer"),
        ({"path": "x", "query_id": "q", "batch_id": str(2**63)}, "batch_id: .* 0 to 9223372036854775807, got '9223"),
        ({"path": "x", "query_id": "q", "batch_id": "1" * 5000}, "batch_id: .* 0 to 9223372036854775807, got '1111"),
        (
            {"database": "d"},
            "option path is required: the instance folder, as in load.*; an instance cannot be a table",
        ),
        (
            {"location": "x", "database": "d"},
            "CREATE TABLE: an instance cannot be a table .*; use CREATE TEMPORARY VIEW",
        ),
    ],
)
def test_invalid_write_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_write_options(options)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"to_service": "string"}, TO_ORDERS, "missing column 'message_body'; add it .binary.$"),
        ({"message_body": "string"}, TO_ORDERS, "column 'message_body' has type string; expected binary"),
        ({**COLUMNS, "colour": "string"}, TO_ORDERS, "unknown column 'colour'; expected one of message_body"),
        (
            {**COLUMNS, "position": "array<int>"},
            TO_ORDERS,
            "column 'position' has type array<int>; expected tinyint or",
        ),
        (
            COLUMNS,
            {"database": "Sales", "from_service": "//Shop"},
            "missing column 'to_service'; add it .string., or set the option",
        ),
    ],
)
def test_invalid_columns_are_refused_when_a_write_is_planned(
    columns: dict[str, str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        Sink.of(parse_write_options({"path": "x", **options}), columns, overwrite=False, is_stream=False)


def test_overwrite_and_batch_numbers_of_streams_are_refused() -> None:
    options = parse_write_options({"path": "x", **TO_ORDERS, "query_id": "q", "batch_id": "0"})
    with pytest.raises(OptionError, match="use mode"):
        Sink.of(options, COLUMNS, overwrite=True, is_stream=False)
    with pytest.raises(OptionError, match="omit them in a stream"):
        Sink.of(options, COLUMNS, overwrite=False, is_stream=True)


def test_a_user_schema_selects_columns_in_their_types() -> None:
    options = parse_read_options({"path": "x", "queue": "Orders"})
    assert select_columns(options, {"message_body": "binary", "status": "smallint"}).names == ["message_body", "status"]
    with pytest.raises(SchemaError, match="column message_body has type binary, but the schema specifies string"):
        select_columns(options, {"message_body": "string"})
    with pytest.raises(SchemaError, match="column body does not exist"):
        select_columns(options, {"body": "binary"})
    with pytest.raises(InputError, match="columns: Orders has no column 'body'; it has database, status"):
        parse_read_options({"path": "x", "queue": "Orders", "columns": "body"}).schema()
    with pytest.raises(InputError, match="columns: 'status' is listed twice"):
        parse_read_options({"path": "x", "queue": "Orders", "columns": "status, status"}).schema()


def test_a_queue_is_the_same_inline_and_in_slices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        send(folder, b"%d" % number, b"x" * number)
    whole = read_all(scan_of(folder, queue="Orders"))
    assert [row["message_body"] for row in whole] == bodies(folder)
    assert all(isinstance(part, Inline) for part in scan_of(folder, queue="Orders").parts())
    monkeypatch.setattr(reader, "INLINE_ROWS", 0)
    monkeypatch.setattr(reader, "SLICE_ROWS", 4)
    assert [type(part) for part in scan_of(folder, queue="Orders").parts()] == [Slice] * 5
    assert read_all(scan_of(folder, queue="Orders")) == whole
    assert [type(part) for part in scan_of(folder, queue="Orders", inline="true").parts()] == [Inline] * 5
    assert read_all(scan_of(folder, queue="Orders", inline="true")) == whole


@pytest.mark.parametrize("name", [*DATABASE_VIEWS, *INSTANCE_VIEWS])
def test_every_view_equals_that_of_the_instance(folder: Path, name: str) -> None:
    send(folder, b"one")
    send(folder, b"for elsewhere", to_service="//Far")
    with ssbroker.Instance.open(folder, background=False) as instance:
        expected = instance.view(name)
    options = scan_of(folder, view=name)
    assert options.schema.names == expected.column_names
    assert len(ddl(options.schema).split(", ")) == len(expected.column_names)
    assert read_all(options) == expected.to_pylist()


def test_workers_on_other_machines_cannot_read_an_instance(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send(folder, b"one")
    monkeypatch.setattr(reader, "INLINE_ROWS", 0)
    sliced, inline = scan_of(folder, queue="Orders"), scan_of(folder, queue="Orders", inline="true")
    parts, carried = sliced.parts(), inline.parts()
    another = f"not {reader.machine_id()}"
    monkeypatch.setattr(reader, "machine_id", lambda: another)
    with pytest.raises(InputError, match=r"can only be read on its own machine; set \.option\('inline', 'true'\)"):
        list(sliced.rows(parts[0]))
    assert sum(batch.num_rows for part in carried for batch in inline.rows(part)) == 1


def test_filters_select_databases_and_numbers_before_reading(folder: Path) -> None:
    send(folder, *(b"%d" % number for number in range(9)))
    options = [spark.EqualTo(("database",), "Sales"), spark.GreaterThan(("queuing_order",), 4)]
    options.append(spark.LessThanOrEqual(("queuing_order",), 6))
    narrow, staged_files = scan_of(folder, queue="Orders").push_filters(options)
    assert staged_files == []
    assert (narrow.pushed.after, narrow.pushed.until, narrow.pushed.databases) == (4, 6, frozenset({"Sales"}))
    assert [row["queuing_order"] for row in read_all(narrow)] == [5, 6]
    nowhere, _ = scan_of(folder, queue="Orders").push_filters([spark.EqualTo(("database",), "Other")])
    assert read_all(nowhere) == []


def tail_of(folder: Path, **options: str) -> Tail:
    return Tail(scan_of(folder, queue="Orders", database="Sales", **options))


def read_messages(tail: Tail, start: Offset, end: Offset) -> list[bytes]:
    parts = tail.parts(start, end)
    return [row["message_body"] for part in parts for batch in tail.rows(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("options", [{}, {"inline": "true"}])
def test_a_stream_reads_each_message_once(folder: Path, options: dict[str, str]) -> None:
    tail = tail_of(folder, **options)
    start, seen = tail.initial(), list[bytes]()
    for number in range(3):
        send(folder, b"%d" % number, b"-")
        send(folder, b"for another queue", to_service="//Shop")
        end = tail.latest(start, None)
        seen += read_messages(tail, start, end)
        assert tail.latest(end, None) == end
        receive(folder, 2)
        start = end
    assert seen == [b"0", b"-", b"1", b"-", b"2", b"-"]


def test_micro_batches_respect_the_row_limit(folder: Path) -> None:
    send(folder, *(b"%d" % number for number in range(5)))
    tail, sizes = tail_of(folder), []
    start = tail.initial()
    while (end := tail.latest(start, 2)) != start:
        sizes.append(len(read_messages(tail, start, end)))
        start = end
    assert sizes == [2, 2, 1]


def test_a_stream_can_start_and_stop_at_the_current_end(folder: Path) -> None:
    send(folder, b"before")
    tail = tail_of(folder, starting="latest")
    start = tail.initial()
    send(folder, b"meanwhile")
    tail.stop_at_current_end()
    send(folder, b"after")
    assert read_messages(tail, start, tail.latest(start, None)) == [b"meanwhile"]
    assert tail.latest(tail.latest(start, None), None) == tail.latest(start, None)


def test_messages_received_before_the_stream_read_them_are_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(folder, b"1", b"2", b"3")
    tail = tail_of(folder)
    start = tail.initial()
    parts = tail.parts(start, tail.latest(start, None))
    receive(folder, 2)
    with caplog.at_level(logging.WARNING, logger="ssbroker.spark"):
        assert sum(batch.num_rows for part in parts for batch in tail.rows(part)) == 1
    expected = (
        "queue Orders of database Sales: other receivers received 2 messages before the stream read them; "
        "the stream omits these messages"
    )
    assert caplog.messages == [expected]


def test_only_a_queue_of_one_database_can_be_streamed(folder: Path) -> None:
    with pytest.raises(InputError, match=r"sys\.routes: a view cannot be read as a stream"):
        Tail(scan_of(folder, view="sys.routes"))
    with pytest.raises(OptionError, match="option database is required"):
        Tail(scan_of(folder, queue="Orders"))


def sink_of(folder: Path, columns: dict[str, str] = COLUMNS, **options: str) -> Sink:
    parsed = parse_write_options({"path": str(folder), **TO_ORDERS, **options})
    return Sink.of(parsed, columns, overwrite=False, is_stream=False)


def batch_of(*sent: bytes, **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"message_body": pa.array(sent, pa.binary()), **columns})


def staged_files(folder: Path) -> list[str]:
    """Returns the staged files beside the instance."""
    return sorted(name for _, _, names in os.walk(folder / writer.STAGING_FOLDER) for name in names)


def test_rows_are_sent_by_partition_or_position(folder: Path) -> None:
    sink = sink_of(folder)
    read_all = [
        sink.stage([batch_of(b"3"), batch_of(b"4")], partition=1),
        sink.stage([batch_of(b"1", b"2")], partition=0),
    ]
    sink.commit(read_all)
    assert bodies(folder) == [b"1", b"2", b"3", b"4"]
    columns = {**COLUMNS, "position": "int", "dialog": "string"}
    sink = sink_of(folder, columns)
    first = sink.stage([batch_of(b"c", b"a", position=[3, 1], dialog=["x", "x"])], partition=0)
    second = sink.stage([batch_of(b"b", b"B", position=[2, 2], dialog=["x", "y"])], partition=1)
    sink.commit([first, second])
    assert dialogs(folder)[1:] == [[b"B"], [b"a", b"b", b"c"]]
    assert staged_files(folder) == []


def test_a_repeated_micro_batch_is_sent_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Even if another attempt staged other files."""
    sink = sink_of(folder)
    caplog.set_level(logging.INFO, "ssbroker")
    for _ in range(2):
        read_all = sink.stage([batch_of(b"1")], partition=0, query_id="q", batch_id=0)
        sink.commit([read_all], 0)
        assert bodies(folder) == [b"1"]
        assert staged_files(folder) == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert caplog.messages[-1] == f"{folder}: skipped batch 0 of query q: it was already sent"
    sink.commit([sink.stage([batch_of(b"2")], partition=0, query_id="q", batch_id=1)], 1)
    assert dialogs(folder) == [[b"1", b"2"]]


def test_a_numbered_batch_write_is_sent_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second write logs a warning: a number that was reused for other rows would lose them."""
    for number, warnings in (("7", []), ("7", ["7"]), ("6", ["6"]), ("8", [])):
        caplog.clear()
        sink = sink_of(folder, query_id="night", batch_id=number)
        sink.commit([sink.stage([batch_of(number.encode())], partition=0)])
        read_all = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(read_all) == len(warnings)
        for text, batch_id in zip(read_all, warnings, strict=True):
            assert f"shop: this write was skipped: batch_id {batch_id} of query_id 'night', or a later" in text
    assert bodies(folder) == [b"7", b"8"]


def test_abort_after_a_failed_commit_removes_only_staged_files(folder: Path) -> None:
    sink = sink_of(folder)
    sent = sink.stage([batch_of(b"1")], partition=0, query_id="q", batch_id=0)
    sink.commit([sent], 0)
    sink.abort([sent, None])
    assert bodies(folder) == [b"1"]
    other = sink_of(folder, to_service="//Shop", contract="//No")
    refused = other.stage([batch_of(b"2")], partition=0, query_id="q", batch_id=1)
    with pytest.raises(BrokerError, match="//No"):
        other.commit([refused], 1)
    assert len(staged_files(folder)) == 1
    other.abort([refused])
    assert (bodies(folder), staged_files(folder)) == ([b"1"], [])


def test_files_of_killed_attempts_are_removed_with_the_batch_or_after_a_week(folder: Path) -> None:
    sink = sink_of(folder)
    for _ in range(3):
        sink.stage([batch_of(b"1")], partition=0, query_id="q", batch_id=0)
    ahead = sink.stage([batch_of(b"2")], partition=0, query_id="q", batch_id=1)
    abandoned = sink_of(folder).stage([batch_of(b"x")], partition=0)
    sink.commit([sink.stage([batch_of(b"1")], partition=0, query_id="q", batch_id=0)], 0)
    assert staged_files(folder) == sorted(Path(one.file).name for one in (ahead, abandoned))
    moment = Path(abandoned.file).stat().st_mtime
    writer.remove_finished(folder, "other", now=moment + 6 * 24 * 3600)
    assert len(staged_files(folder)) == 2
    writer.remove_finished(folder, "other", now=moment + 8 * 24 * 3600)
    assert staged_files(folder) == []


def test_a_worker_without_access_to_the_instance_fails(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the worker finds no instance in this folder"):
        sink_of(tmp_path / "elsewhere").stage([batch_of(b"1")], partition=0)


def test_a_damaged_staged_file_sends_nothing(folder: Path) -> None:
    sink = sink_of(folder)
    read_all = sink.stage([batch_of(b"1"), batch_of(b"2")], partition=0)
    whole = Path(read_all.file).read_bytes()
    Path(read_all.file).write_bytes(whole[:-20])
    with pytest.raises(InputError, match="staged file is damaged"):
        sink.commit([read_all])
    assert bodies(folder) == []


def test_invalid_utf8_is_refused_when_staged(folder: Path) -> None:
    """Spark strings may hold any bytes."""
    names = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    with pytest.raises(InputError, match="to_service: contains invalid UTF-8"):
        sink_of(folder).stage([batch_of(b"1").append_column("to_service", names)], partition=0)


def test_parts_have_a_bounded_size(folder: Path) -> None:
    sink = sink_of(folder)
    read_all = [sink.stage([batch_of(*(b"x" * (1 << 20) for _ in range(40)))], partition=0)]
    sizes = [part.num_rows for part in writer.ordered_parts(read_all)]
    assert (sum(sizes), max(sizes) <= 32) == (40, True)
    small = [sink.stage([batch_of(*(b"x" for _ in range(10_000)))], partition=0)]
    assert [part.num_rows for part in writer.ordered_parts(small)] == [8192, 1808]


def test_a_batch_is_identified_by_query_id_and_batch_id() -> None:
    assert parse_write_options({"path": "x", **TO_ORDERS, "query_id": "q", "batch_id": "0"}).batch == NumberedBatch(
        "q", 0
    )
