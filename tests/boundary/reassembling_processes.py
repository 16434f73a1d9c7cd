"""Functions that other processes run with a reassembler; top-level, so that they can be pickled by name."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from typing import Any

import cloudpickle
import pyarrow as pa

import ssbroker
from ssbroker import Reassembler
from tests.boundary.fragmented import FRAGMENTS, tables_of
from tests.reassembly.signed_messages import IDS

Result = tuple[list[list[dict[str, Any]]], bytes]
HALF = FRAGMENTS.num_rows // 2
KEYS = {IDS[1]: b"k" * 16}
CREATED_BEFORE: list[Reassembler] = []
"""A reassembler that exists before a process forks; a new process has none."""


def halfway() -> Reassembler:
    """Returns a reassembler with half of the fragments."""
    reassembler = Reassembler(session_keys=KEYS)
    reassembler.push(FRAGMENTS.slice(0, HALF))
    return reassembler


def push_rest(reassembler: Reassembler, rest: pa.RecordBatch) -> Result:
    """Pushes the rest into a reassembler that was sent here."""
    return tables_of(reassembler.push(rest)), reassembler.checkpoint()


def push_rest_from_checkpoint(state: bytes, rest: pa.RecordBatch) -> Result:
    """Pushes the rest into a reassembler restored from a checkpoint that was sent here."""
    return push_rest(Reassembler.restore(state, session_keys=KEYS), rest)


def push_rest_by_cloudpickle(pickled: bytes, rest: pa.RecordBatch) -> Result:
    """Pushes the rest into a closure over a reassembler, as Spark sends them."""
    rows: Result = pickle.loads(pickled)(rest)
    return rows


def push_rest_into_inherited(rest: pa.RecordBatch) -> Result:
    """Pushes the rest into a reassembler that was created before this process was forked."""
    return push_rest(CREATED_BEFORE[0], rest)


def digest(values: pa.Array[Any]) -> list[Any]:
    """Computes digests here."""
    return list(ssbroker.md5(values).to_pylist())


def main(start_method: str) -> None:
    """Tries all ways, and prints those that differ."""
    context: Any = multiprocessing.get_context(start_method)
    rest = FRAGMENTS.slice(HALF)
    expected = push_rest(halfway(), rest)
    here = halfway()
    CREATED_BEFORE.append(here)
    closure = cloudpickle.dumps(lambda given: push_rest(here, given))
    bodies = FRAGMENTS["message_body"]
    with context.Pool(1) as pool:
        found = {
            "pickled": pool.apply(push_rest, (here, rest)),
            "restored": pool.apply(push_rest_from_checkpoint, (here.checkpoint(), rest)),
            "cloudpickled": pool.apply(push_rest_by_cloudpickle, (closure, rest)),
        }
        if start_method == "fork":
            found["made before"] = pool.apply(push_rest_into_inherited, (rest,))
        digests = pool.apply(digest, (bodies,))
    wrong = [form for form, rows in found.items() if rows != expected]
    print([*wrong, *(["digests"] if digests != digest(bodies) else [])])


if __name__ == "__main__":
    # Pickles the functions by the name of this module, not as `__main__`.
    from tests.boundary import reassembling_processes

    reassembling_processes.main(sys.argv[1])
