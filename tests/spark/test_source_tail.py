"""A queue that is followed for long: a little at a time, and after its database was put back to what it had been (U22)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ssbroker.exceptions import InputError
from ssbroker.spark.source.options import parse_read_options
from ssbroker.spark.source.reader import Scan, Tail
from ssbroker.store import queues
from tests.spark.instances import made, send


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "shop")


def tail_of(folder: Path) -> Tail:
    asked = parse_read_options({"path": str(folder), "queue": "Orders", "database": "Sales"})
    return Tail(Scan.of(asked, asked.schema()))


def test_a_small_batch_reads_little_of_a_long_queue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of n batches looked at all that was left: of 200,000 messages by the thousand, 20,000,000."""
    send(folder, *(b"%d" % number for number in range(300)))
    cut, made_cuts = queues.QueueSlice, list[int]()

    def counted(after: int, until: int, rows: int, size: int) -> queues.QueueSlice:
        made_cuts.append(rows)
        return cut(after, until, rows, size)

    monkeypatch.setattr(queues, "QueueSlice", counted)
    tail, start = tail_of(folder), {"queuing_order": 0}
    while (end := tail.latest(start, 10)) != start:
        start = end
    assert start == {"queuing_order": 300}
    assert made_cuts == [10] * 30


def test_a_database_that_was_put_back_is_told(folder: Path) -> None:
    """Its numbers are given again: what gets them would be passed over without a word."""
    send(folder, b"1")
    copy = shutil.copytree(folder, folder.with_name("copy"))
    send(folder, b"2", b"3")
    tail = tail_of(folder)
    end = tail.latest(tail.initial(), None)
    shutil.rmtree(folder)
    copy.rename(folder)
    told = "has read up to queuing_order 3, but the last one in Sales is 1; .* with a new checkpoint"
    with pytest.raises(InputError, match=told):
        tail_of(folder).latest(end, None)
    with pytest.raises(InputError, match=told):
        tail_of(folder).parts(tail.initial(), end)
    send(folder, b"other 2")
    with pytest.raises(InputError, match="the last one in Sales is 2"):
        tail_of(folder).latest(end, None)
