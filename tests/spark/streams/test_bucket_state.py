"""The state of a bucket: damaged, foreign and outdated states are refused."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.exceptions import MalformedDataError, OptionError
from ssbroker.reassembly import Reassembler
from ssbroker.spark.streams import bucket_state, packed_rows
from ssbroker.spark.streams.bucket_state import MAGIC, VERSION, BucketState, state_from_bytes
from ssbroker.spark.streams.bucket_step import run_step
from tests.rules.fragments import A, first_of_two, single
from tests.spark.streams.steps import FIXED, START, BucketRunner, assembly, batch_of, task
from tests.spark.streams.test_delayed_messages import LATE, ROUTED, catalog, message_to, runner_with, service_batch


def full_state() -> bytes:
    """Returns a state with every section filled."""
    runner = runner_with(catalog(ROUTED))
    runner.run(service_batch(message_to(LATE, 0), replace(first_of_two(2), extra={"note": LATE, "priority": 1})))
    assert runner.state is not None
    return runner.state


def resealed(state: bytes) -> bytes:
    """Returns a state with a matching digest, as far as there are sections."""
    place, sections = len(MAGIC) + 2, []
    while place < len(state) - 16:
        length = int.from_bytes(state[place : place + 8], "little")
        sections.append(state[place : place + 8 + length])
        place += 8 + length
    lengths = b"".join(section[:8] for section in sections)
    rest = b"".join(section[8:] for section in sections[:-1]) + sections[-1][8:][-16:]
    return state[:-16] + hashlib.blake2b(lengths + rest, digest_size=16).digest()


def read(state: bytes) -> None:
    """Reads the whole state, as a step does."""
    Reassembler.restore(state_from_bytes(state).assembler)


def test_a_state_round_trips() -> None:
    state = state_from_bytes(full_state())
    assert state_from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()
    assert state.waits is not None
    assert state.delayed is not None
    assert (state.waits.num_rows, state.delayed.num_rows) == (1, 1)
    assert dict(state.fixed) == FIXED


def test_equal_states_have_equal_bytes() -> None:
    """A step that is repeated after a failure stores the same bytes."""
    assert full_state() == full_state()


def test_altered_and_truncated_states_are_refused() -> None:
    state, random = full_state(), Random(1)
    for _ in range(300):
        place = random.randrange(len(state))
        altered = state[:place] + bytes([state[place] ^ 1 << random.randrange(8)]) + state[place + 1 :]
        with pytest.raises(
            MalformedDataError,
            match=r"stream in this checkpoint (is invalid|has the format \d+, and this version of ssbroker reads only 1)|reassembler checkpoint",
        ):
            read(altered)
        with pytest.raises(MalformedDataError, match="state of an ssbroker stream in this checkpoint is invalid"):
            state_from_bytes(state[:place])
    with pytest.raises(MalformedDataError, match="truncated or altered"):
        state_from_bytes(state + b"\0")


def test_a_reassembler_checkpoint_of_another_state_is_refused() -> None:
    """The reassembler's section has its own digest, and must be that of this state."""
    state, other = state_from_bytes(full_state()), Reassembler()
    other.push(batch_of([first_of_two(7)]))
    mixed = state.to_bytes().replace(
        state.assembler, other.checkpoint().ljust(len(state.assembler), b"\0")[: len(state.assembler)]
    )
    assert len(mixed) == len(state.to_bytes())
    with pytest.raises(MalformedDataError, match="digest"):
        state_from_bytes(mixed)


@pytest.mark.parametrize("state", [b"", b"\0" * 200, MAGIC, MAGIC + b"\1\0"])
def test_other_bytes_are_refused(state: bytes) -> None:
    with pytest.raises(MalformedDataError, match="wrong header; it was truncated, or is not the state of a stream"):
        state_from_bytes(state)


def test_another_version_is_reported() -> None:
    state = full_state()
    other = resealed(MAGIC + struct.pack("<H", VERSION + 1) + state[len(MAGIC) + 2 :])
    with pytest.raises(MalformedDataError, match="has the format 2, and this version of ssbroker reads only 1"):
        state_from_bytes(other)


def test_inconsistent_states_with_a_valid_digest_are_refused() -> None:
    """A writer of the checkpoint can create any state, but only causes this error, and no crash."""
    state, random, refused = full_state(), Random(2), 0
    for _ in range(300):
        place = random.randrange(len(MAGIC) + 2, len(state) - 16)
        altered = resealed(state[:place] + bytes([random.randrange(256)]) + state[place + 1 :])
        try:
            read(altered)
        except MalformedDataError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize(("name", "value"), [("buckets", 8), ("in_order", False), ("max_message_bytes", 1)])
def test_changed_fixed_options_are_refused(name: str, value: Any) -> None:
    """State that was created with other options would be misread."""
    runner = BucketRunner(task(assembly()))
    runner.run(batch_of([first_of_two(0)]))
    other = task(assembly(), fixed={**FIXED, name: value})
    with pytest.raises(
        OptionError, match=rf"^{name}: this checkpoint was created with .*, but the query now has {value}"
    ):
        run_step(other, runner.state, [], now_us=START)


@pytest.mark.rule("P11")
def test_waiting_messages_are_not_overtaken() -> None:
    """Without a catalog, new messages would be emitted before the waiting ones, which would never be."""
    with pytest.raises(OptionError, match=r"^catalog: messages in this checkpoint wait for a route"):
        run_step(task(assembly()), full_state(), [], now_us=START)


def test_other_options_may_change() -> None:
    """Ages, limits of waiting messages and catalogs are those of the current run."""
    runner = BucketRunner(task(assembly()))
    runner.run(batch_of([first_of_two(0)]))
    runner.task = task(assembly(max_pending_age_us=1))
    output = runner.run(batch_of([single(0, conversation=A, initiator=False)]), now_us=START + 1)
    assert sorted(output) == ["acknowledgement", "expired", "message"]


def test_large_cells_are_split() -> None:
    """A cell of Spark holds up to 2 GiB; a single row may be as large as it is."""
    rows = pa.record_batch({"body": [bytes(1000), bytes(10), bytes(10), bytes(10)]})
    cut = list(packed_rows.split_by_size(rows, max_bytes=200))
    assert [piece.num_rows for piece in cut] == [1, 1, 2]
    assert pa.Table.from_batches(cut).to_pylist() == rows.to_pylist()
    assert list(packed_rows.split_by_size(rows.slice(0, 0), max_bytes=200)) == []


@pytest.mark.parametrize("size", [*range(1, 17), 256, 10_001])
def test_bytes_round_trip_as_text(size: int) -> None:
    data = Random(size).randbytes(size)
    assert bucket_state.bytes_from_text(bucket_state.text_from_bytes(data)) == data
    assert bucket_state.text_from_bytes(data).isascii()


def test_text_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(MalformedDataError, match="state of an ssbroker stream in this checkpoint is invalid"):
        bucket_state.bytes_from_text("\u00e9")


def test_an_empty_state_is_short() -> None:
    assert len(BucketState(fixed=FIXED, names={}).to_bytes()) < 300
