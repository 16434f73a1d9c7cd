"""MD5 of many values: `ssbroker.md5` with each length of vectors that this processor has, and a loop over `hashlib`, interleaved.

The digests are compared before anything is timed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import ssbroker
from benches.columns import buffer
from benches.race import ReplayClock, Times, race
from benches.settings import SIZE, report
from benches.vectors import VECTORS, with_vectors

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

Lengths: TypeAlias = npt.NDArray[np.int64]

OURS: Final = "ssbroker.md5"
HASHLIB: Final = "hashlib"


def _equal(length: int) -> Callable[[np.random.Generator], Lengths]:
    return lambda _: np.full(SIZE.digested // length, length)


def _log_uniform(rng: np.random.Generator) -> Lengths:
    """Returns lengths from 16 bytes to 8 KiB, uniform on a logarithmic scale."""
    lengths: Lengths = np.exp2(rng.uniform(4, 13, SIZE.digested // 1313)).astype(np.int64)
    return lengths


def _heavy_tail(rng: np.random.Generator) -> Lengths:
    """Returns lengths of 1 KiB, and 1% of 256 KiB, which hold nearly three quarters of the bytes."""
    count = SIZE.digested // 3635
    return np.where(rng.permutation(count) % 100 == 0, 256 << 10, 1 << 10)


LENGTHS: Final[dict[str, Callable[[np.random.Generator], Lengths]]] = {
    "64 B": _equal(64),
    "1 KiB": _equal(1 << 10),
    "4 KiB": _equal(4 << 10),
    "64 KiB": _equal(64 << 10),
    "16 B to 8 KiB, log-uniform": _log_uniform,
    "1 KiB, 1% of 256 KiB": _heavy_tail,
}


@pytest.mark.parametrize("name", [*(f"{OURS}, {vectors}" for vectors in VECTORS), HASHLIB])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_md5(benchmark: BenchmarkFixture, lengths: str, name: str) -> None:
    times, nbytes = _race(lengths)
    benchmark.group = f"MD5 of {lengths}"
    benchmark.extra_info["bytes"] = nbytes
    CLOCK.replay(benchmark, times[name])


@functools.cache
def _race(name: str) -> tuple[dict[str, Times], int]:
    values = _values(np.random.default_rng(1), LENGTHS[name])
    # Converting to Python bytes for the loop is not timed.
    own: list[bytes] = values.to_pylist()
    nbytes = sum(map(len, own))
    ours = with_vectors(OURS, lambda: ssbroker.md5(values))
    expected = _by_hashlib(own)
    for digests in ours.values():
        assert digests().to_pylist() == expected
    times = race({**ours, HASHLIB: lambda: _by_hashlib(own)}, rounds=2 * SIZE.rounds)
    rates = {lane: nbytes / times[lane].median / 1e9 for lane in times}
    heading = f"MD5 of values with a total of {SIZE.digested >> 20} MiB, one thread"
    for lane in ours:
        by_cpu = times[HASHLIB].cpu_median / times[lane].cpu_median
        ratio = f"{rates[lane] / rates[HASHLIB]:5.2f} x;  CPU time {by_cpu:5.2f} x"
        report(heading, f"{name:<27} {lane:<22} {rates[lane]:6.2f} GB/s, hashlib {rates[HASHLIB]:5.2f}: {ratio}")
    return times, nbytes


def _values(rng: np.random.Generator, lengths: Callable[[np.random.Generator], Lengths]) -> Any:
    offsets = np.concatenate([[0], np.cumsum(lengths(rng))])
    data = rng.integers(0, 2**64, int(offsets[-1]) // 8 + 1, np.uint64)
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, buffer(offsets.astype(np.int32)), buffer(data.view(np.uint8))]
    )


def _by_hashlib(values: list[bytes]) -> list[bytes]:
    md5 = hashlib.md5
    return [md5(value).digest() for value in values]
