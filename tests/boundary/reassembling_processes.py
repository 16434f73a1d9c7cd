"""What another process is asked to do with a reassembler: top-level functions, so that they can be sent there by name."""

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
from tests.unit.signed import IDS

Told = tuple[list[list[dict[str, Any]]], bytes]
HALF = FRAGMENTS.num_rows // 2
KEYS = {IDS[1]: b"k" * 16}
CREATED_BEFORE: list[Reassembler] = []
"""A reassembler that exists before a process forks; a new process has none."""


def halfway() -> Reassembler:
    """With half of the fragments."""
    reassembler = Reassembler(session_keys=KEYS)
    reassembler.push(FRAGMENTS.slice(0, HALF))
    return reassembler


def go_on(reassembler: Reassembler, rest: pa.RecordBatch) -> Told:
    """Pushes the rest into a reassembler that was sent here."""
    return tables_of(reassembler.push(rest)), reassembler.checkpoint()


def go_on_from(state: bytes, rest: pa.RecordBatch) -> Told:
    """Pushes the rest into a reassembler that is made of a state that was sent here."""
    return go_on(Reassembler.restore(state, session_keys=KEYS), rest)


def go_on_by_cloudpickle(pickled: bytes, rest: pa.RecordBatch) -> Told:
    """Pushes the rest into a closure over a reassembler, as Spark sends them."""
    told: Told = pickle.loads(pickled)(rest)
    return told


def go_on_with_the_one_from_before(rest: pa.RecordBatch) -> Told:
    """Pushes the rest into a reassembler that was made before this process was forked."""
    return go_on(CREATED_BEFORE[0], rest)


def digest(values: pa.Array[Any]) -> list[Any]:
    """Digests here."""
    return list(ssbroker.md5(values).to_pylist())


def main(start_method: str) -> None:
    """Tries all ways, and prints those that went wrong."""
    context: Any = multiprocessing.get_context(start_method)
    rest = FRAGMENTS.slice(HALF)
    expected = go_on(halfway(), rest)
    here = halfway()
    CREATED_BEFORE.append(here)
    closure = cloudpickle.dumps(lambda given: go_on(here, given))
    bodies = FRAGMENTS["message_body"]
    with context.Pool(1) as pool:
        found = {
            "pickled": pool.apply(go_on, (here, rest)),
            "restored": pool.apply(go_on_from, (here.checkpoint(), rest)),
            "cloudpickled": pool.apply(go_on_by_cloudpickle, (closure, rest)),
        }
        if start_method == "fork":
            found["made before"] = pool.apply(go_on_with_the_one_from_before, (rest,))
        digests = pool.apply(digest, (bodies,))
    wrong = [way for way, told in found.items() if told != expected]
    print([*wrong, *(["digests"] if digests != digest(bodies) else [])])


if __name__ == "__main__":
    # The functions are sent by the name of this module, not as `__main__`.
    from tests.boundary import reassembling_processes

    reassembling_processes.main(sys.argv[1])
