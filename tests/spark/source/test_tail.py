"""A queue that is read as a stream for long: in small batches, and after its database was restored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import ssbroker
from ssbroker.exceptions import InputError
from ssbroker.spark.source.options import parse_read_options
from ssbroker.spark.source.reader import Scan, Tail
from ssbroker.store import views
from tests.spark.source.instances import create_instance, receive, send, view


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create_instance(tmp_path / "shop")


def tail_of(folder: Path, *, queue: str = "Orders", **further: str) -> Tail:
    options = parse_read_options({"path": str(folder), "queue": queue, "database": "Sales", **further})
    return Tail(Scan.of(options, options.schema()))


def test_small_batches_read_little_of_a_long_queue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch used to read all remaining messages: 20,000,000 for 200,000 messages in batches of a thousand."""
    send(folder, *(b"%d" % number for number in range(300)))
    cut, made_cuts = views.QueueSlice, list[int]()

    def counted(after: int, until: int, rows: int, size: int) -> views.QueueSlice:
        made_cuts.append(rows)
        return cut(after, until, rows, size)

    monkeypatch.setattr(views, "QueueSlice", counted)
    tail, start = tail_of(folder), {"queuing_order": 0}
    while (end := tail.latest(start, 10)) != start:
        start = end
    assert start == {"queuing_order": 300}
    assert made_cuts == [10] * 30


def test_a_restored_database_is_reported(folder: Path) -> None:
    """Numbers are assigned again after a restore, so that new messages would be skipped silently."""
    send(folder, b"1")
    copy = shutil.copytree(folder, folder.with_name("copy"))
    send(folder, b"2", b"3")
    tail = tail_of(folder)
    end = tail.latest(tail.initial(), None)
    shutil.rmtree(folder)
    copy.rename(folder)
    message = "has read up to queuing_order 3, but the last queuing_order in Sales is 1; .* with a new checkpoint"
    with pytest.raises(InputError, match=message):
        tail_of(folder).latest(end, None)
    with pytest.raises(InputError, match=message):
        tail_of(folder).parts(tail.initial(), end)
    send(folder, b"other 2")
    with pytest.raises(InputError, match="the last queuing_order in Sales is 2"):
        tail_of(folder).latest(end, None)


@pytest.mark.parametrize("inline", ["false", "true"])
def test_copies_of_sent_messages_are_not_read(folder: Path, inline: str) -> None:
    """With RETENTION = ON, a queue keeps copies of the messages that its service sends."""
    with ssbroker.Instance.open(folder, background=False) as instance:
        instance.execute("USE Sales; ALTER QUEUE Replies WITH RETENTION = ON")
    send(folder, b"sent")
    send(folder, b"received", to_service="//Shop")
    receive(folder, 1, queue="Replies")
    send(folder, b"sent too")
    assert sorted(row["status"] for row in view(folder, "Replies")) == [0, 3, 3, 3]
    tail = tail_of(folder, queue="Replies", inline=inline)
    end = tail.latest(tail.initial(), None)
    found = [batch for part in tail.parts(tail.initial(), end) for batch in tail.rows(part)]
    assert pa.Table.from_batches(found)["message_body"].to_pylist() == [b"received"]
    assert tail.latest(end, None) == end
