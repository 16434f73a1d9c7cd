"""Floods of hostile fragments in a separate process, which prints the memory that they used.

Run: `python -m tests.property.fragment_floods FLOOD ORDER FRAGMENTS LIMIT HONEST_PARTS`, or `... results COUNT`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

import ssbroker

BATCH: Final = 2_000
INT32_MAX: Final = 2**31 - 1
FAR_SEQUENCE: Final = 2**63 - 1

HONEST_PARTS: Final = 3
HONEST_PART: Final = b"honest part that is told from all others"
HONEST_ID: Final = b"honest to the la"

Random = np.random.Generator
Numbers = np.ndarray[tuple[int], np.dtype[Any]]


def batch_of(
    ids: pa.Array[Any], sequence: Numbers, number: Numbers, count: Numbers, body: pa.Array[Any]
) -> pa.RecordBatch:
    """Returns unsigned fragments of initiators."""
    return pa.record_batch(
        {
            "conversation_id": ids,
            "is_initiator": pa.array(np.ones(len(ids), bool)),
            "message_sequence_number": pa.array(sequence, pa.int64()),
            "fragment_number": pa.array(number, pa.int32()),
            "fragment_count": pa.array(count, pa.int32()),
            "message_body": body,
        }
    )


def ids_of(numbers: Numbers) -> pa.Array[Any]:
    """Returns conversation ids of these numbers."""
    data = np.zeros((len(numbers), 2), np.uint64)
    data[:, 1] = numbers
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(numbers), [None, pa.py_buffer(data.tobytes())])


def bodies(random: Random, rows: int, longest: int) -> pa.Array[Any]:
    """Returns bodies of random lengths up to a maximum."""
    lengths = random.integers(0, longest + 1, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = random.bytes(int(offsets[-1]))
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])


def zeros(rows: int) -> Numbers:
    return np.zeros(rows, np.int64)


def unknown_directions(random: Random, start: int, rows: int) -> pa.RecordBatch:
    """First fragments, each of a new conversation."""
    return batch_of(
        ids_of(np.arange(start, start + rows)), zeros(rows), zeros(rows), zeros(rows) + 2, bodies(random, rows, 64)
    )


def empty_unknown_directions(random: Random, start: int, rows: int) -> pa.RecordBatch:
    """Empty first fragments, each of a new conversation and with a false count."""
    count = random.integers(2, INT32_MAX, rows)
    return batch_of(ids_of(np.arange(start, start + rows)), zeros(rows), count - 1, count, bodies(random, rows, 0))


def false_counts(random: Random, start: int, rows: int) -> pa.RecordBatch:
    """Many messages of a few established conversations, each with a declared count of 2^31 - 1 fragments."""
    sequence = 1 + (start + np.arange(rows)) // 50
    return batch_of(
        ids_of(np.arange(start, start + rows) % 50),
        sequence,
        random.integers(0, INT32_MAX, rows),
        zeros(rows) + INT32_MAX,
        bodies(random, rows, 8),
    )


def single_bytes(random: Random, _start: int, rows: int) -> pa.RecordBatch:
    """Single bytes at random positions of a few messages of 2 GB."""
    return batch_of(
        ids_of(random.integers(0, 3, rows)),
        zeros(rows) + 1,
        random.integers(0, INT32_MAX, rows),
        zeros(rows) + INT32_MAX,
        bodies(random, rows, 1),
    )


def gaps(random: Random, start: int, rows: int) -> pa.RecordBatch:
    """Complete messages with numbers up to 2^63, which wait forever; most of them empty."""
    return batch_of(
        ids_of(np.arange(start, start + rows) % 50),
        random.integers(2, FAR_SEQUENCE, rows),
        zeros(rows),
        zeros(rows) + 1,
        bodies(random, rows, 1),
    )


def new_directions(random: Random, start: int, rows: int) -> pa.RecordBatch:
    """Complete first messages of new conversations, whose numbers must be remembered."""
    return batch_of(
        ids_of(np.arange(start, start + rows)), zeros(rows), zeros(rows), zeros(rows) + 1, bodies(random, rows, 64)
    )


def contradictions(random: Random, _start: int, rows: int) -> pa.RecordBatch:
    """Different fragments of the same few messages."""
    count = random.integers(1, 5, rows)
    return batch_of(
        ids_of(random.integers(0, 50, rows)),
        random.integers(1, 20, rows),
        random.integers(0, count),
        count,
        bodies(random, rows, 64),
    )


Result = TypeVar("Result")
Flood = Callable[[Random, int, int], pa.RecordBatch]
FLOODS: Final[dict[str, Flood]] = {
    flood.__name__: flood
    for flood in (
        unknown_directions,
        empty_unknown_directions,
        false_counts,
        single_bytes,
        gaps,
        new_directions,
        contradictions,
    )
}


def honest(sequence: int, parts: int) -> pa.RecordBatch:
    """Returns a message of the honest conversation, its last fragment first."""
    number = np.arange(parts)[::-1]
    return batch_of(
        pa.array([HONEST_ID] * parts, pa.binary(16)),
        zeros(parts) + sequence,
        number,
        zeros(parts) + parts,
        pa.array([HONEST_PART] * parts, pa.binary()),
    )


def resident_bytes(which: str) -> int:
    """Returns the resident memory (`VmRSS`), or its peak since the last reset (`VmHWM`)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) << 10
    raise LookupError(which)


def peak_of(work: Callable[[], Result]) -> tuple[int, Result]:
    """Returns the peak increase of resident memory during the work, and the result of the work."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before = resident_bytes("VmRSS")
    result = work()
    return resident_bytes("VmHWM") - before, result


def reassembler_of(limit: int, *, in_order: bool) -> ssbroker.Reassembler:
    """Returns a reassembler that limits only memory; attackers with few conversations, and the honest one, are known."""
    reassembler = ssbroker.Reassembler(
        max_pending_bytes=limit,
        max_pending_messages=None,
        max_fragments_per_message=None,
        max_sequence_distance=None,
        in_order=in_order,
    )
    known = 50
    first = batch_of(
        ids_of(np.arange(known)),
        zeros(known),
        zeros(known),
        zeros(known) + 1,
        bodies(np.random.default_rng(0), known, 0),
    )
    reassembler.push(first)
    reassembler.push(honest(0, 1))
    return reassembler


def push_flood(reassembler: ssbroker.Reassembler, flood: Flood, fragments: int, honest_parts: int) -> int:
    """Pushes the flood with an honest message after each batch; returns how many honest messages were completed."""
    random = np.random.default_rng(26)
    completed = 0
    for number, start in enumerate(range(1000, 1000 + fragments, BATCH), start=1):
        reassembler.push(flood(random, start, BATCH))
        bodies_of_it = reassembler.push(honest(number, honest_parts)).messages.column("message_body").to_pylist()
        completed += bodies_of_it == [HONEST_PART * honest_parts]
    return completed


def keep_results(results: int) -> None:
    """Keeps the results of many pushes that each release little; prints their memory as JSON."""
    random = np.random.default_rng(26)
    reassembler = reassembler_of(64 << 20, in_order=True)
    for start in range(0, 30 * BATCH, BATCH):
        reassembler.push(false_counts(random, start, BATCH))
    reassembler.push(honest(1, 1))
    increase, kept = peak_of(lambda: [reassembler.push(honest(number, 1)) for number in range(2, results + 2)])
    print(json.dumps({"increase": increase, "messages": sum(result.messages.num_rows for result in kept)}))


def main(name: str, order: str, fragments: int, limit: int, honest_parts: int) -> None:
    """Prints the results of a flood as JSON."""

    def flood(limit: int, fragments: int) -> tuple[int, int]:
        reassembler = reassembler_of(limit, in_order=order == "in_order")
        completed = push_flood(reassembler, FLOODS[name], fragments, honest_parts)
        return reassembler.pending_bytes, completed

    # Memory that a batch needs only while it is read does not count. It is measured first, with a limit just large
    # enough for one batch.
    for _ in range(5):
        batch_bytes, _charged = peak_of(lambda: flood(2 << 20, 3 * BATCH))
    increase, (pending_bytes, completed) = peak_of(lambda: flood(limit, fragments))
    print(
        json.dumps(
            {
                "increase": increase - batch_bytes,
                "batch_bytes": batch_bytes,
                "pending_bytes": pending_bytes,
                "completed": completed,
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "results":
        keep_results(int(sys.argv[2]))
    else:
        main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
