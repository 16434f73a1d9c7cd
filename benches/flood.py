"""Names and ids that an attacker would choose: many that an unkeyed hash function maps to the same value.

Each family is crafted against one such function, or has a pattern that weak mixing does not spread. `chain_compares` computes the effect
on a hash table with that function, because running it would take minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from benches.columns import Column, strings
from benches.workload import Bytes

Words: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

RANDOM: Final = "random"
_BLOCKS: Final = 17
"""Two choices for each of 17 blocks give 131,072 different names."""

_NAME_BYTES: Final = 4 * _BLOCKS
_FNV_PRIME: Final = np.uint32(16_777_619)
_FNV_BASIS: Final = np.uint32(2_166_136_261)
_FX: Final = np.uint64(0x517C_C1B7_2722_0A95)
_WYHASH_SECRET: Final = np.uint64(0xA076_1D64_78BD_642F)
_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)


def name_families(count: int, *, seed: int = 1) -> Mapping[str, Bytes]:
    """Returns `count` different names of each family, all of the same length, as arrays of shape (count, 68)."""
    rng = np.random.default_rng(seed)
    drawn = _LETTERS[rng.integers(0, 64, (count, _NAME_BYTES))]
    number = np.arange(count)
    digits = _LETTERS[np.stack([number >> 12 & 63, number >> 6 & 63, number & 63], axis=1)]
    pairs = np.tile(np.frombuffer(b"Aa..BB..", np.uint8).reshape(2, 4), (_BLOCKS, 1, 1))
    bits = np.tile(np.frombuffer(b"aaaaqaaa", np.uint8).reshape(2, 4), (_BLOCKS, 1, 1))
    return {
        RANDOM: drawn,
        "equal by FNV-1a": _choose(_fnv_blocks(rng), count),
        "equal by 31 * h + byte": _choose(pairs, count),
        "differ in 17 bits": _choose(bits, count),
        "differ in the last three bytes": np.concatenate([np.tile(drawn[:1, 3:], (count, 1)), digits], axis=1),
        "differ in the first three bytes": np.concatenate([digits, np.tile(drawn[:1, 3:], (count, 1))], axis=1),
    }


def guid_families(count: int, *, seed: int = 1) -> Mapping[str, Bytes]:
    """Returns `count` different GUIDs of each family as arrays of shape (count, 16)."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 2**64, (2, count), np.uint64)
    same = np.full(count, first[0])
    number = np.arange(count, dtype=np.uint64)
    return {
        RANDOM: _guid(first, second),
        "same first half": _guid(same, second),
        "same last half": _guid(first, same),
        "same exclusive or of the halves": _guid(first, first ^ same),
        "counter": _guid(same, number.byteswap()),
        "equal by FxHash": _guid(first, _rotated(first * _FX) ^ same),
        "zero product in wyhash": _guid(np.full(count, _WYHASH_SECRET), second),
        "differ in 17 bits": _guid(_spread(number, 9), _spread(number >> np.uint64(9), 8)),
    }


def fnv1a(names: Bytes) -> Words:
    """Hashes each name with the 32-bit FNV-1a."""
    return _fnv_from(_FNV_BASIS, names)


def polynomial(names: Bytes) -> Words:
    """Hashes each name with `h = 31 * h + byte` in 32 bits, as many languages do for strings."""
    state = np.zeros(len(names), np.uint32)
    for column in names.T:
        state = state * np.uint32(31) + column
    return state


def fxhash(guids: Bytes) -> Words:
    """Hashes each GUID, as two little-endian words, with FxHash."""
    words: list[Words] = list(np.ascontiguousarray(guids).view(np.uint64).T)
    return (_rotated(words[0] * _FX) ^ words[1]) * _FX


def chain_compares(hashes: Words) -> float:
    """Returns the average number of keys that a lookup compares in a table of 131,072 chains with these keys."""
    chains = np.bincount((hashes & (2**17 - 1)).astype(np.int64))
    return float((chains * (chains + 1) / 2).sum() / len(hashes))


def text(names: Bytes) -> Column:
    """Converts rows of ASCII bytes to a column of strings."""
    rows, length = names.shape
    return strings(names, np.arange(1, rows + 1) * length)


def _choose(blocks: Bytes, count: int) -> Bytes:
    """Returns the numbers below `count` in binary, with the two blocks of each place as digits."""
    digits = np.arange(count)[:, np.newaxis] >> np.arange(len(blocks)) & 1
    chosen: Bytes = blocks[np.arange(len(blocks)), digits]
    return chosen.reshape(count, -1)


def _fnv_blocks(rng: np.random.Generator) -> Bytes:
    """Finds, for each place, two blocks of four letters after which FNV-1a is in the same state (Joux's multicollision)."""
    state = _FNV_BASIS
    found: list[Bytes] = []
    while len(found) < _BLOCKS:
        drawn = np.sort(_LETTERS[rng.integers(0, 64, (400_000, 4))].view("<u4"), axis=None)
        drawn = drawn[np.append(True, np.diff(drawn) != 0)]  # `np.unique` takes 100 times as long
        blocks = drawn.view(np.uint8).reshape(-1, 4)
        after = _fnv_from(state, blocks)
        order = np.argsort(after)
        at = int(np.flatnonzero(np.diff(after[order]) == 0)[0])
        found.append(blocks[order[at : at + 2]])
        state = after[order[at]]
    return np.stack(found)


def _fnv_from(state: np.uint32, names: Bytes) -> Words:
    states = np.full(len(names), state)
    for column in names.T:
        states = (states ^ column) * _FNV_PRIME
    return states


def _spread(numbers: Words, bits: int) -> Words:
    """Spreads the lowest bits over a word, seven bits apart."""
    digits = (numbers[:, np.newaxis] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    spread: Words = (digits << np.arange(7, 7 + 7 * bits, 7, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    return spread


def _rotated(words: Words) -> Words:
    return (words << np.uint64(5)) | (words >> np.uint64(59))


def _guid(first: Words, second: Words) -> Bytes:
    return np.stack([first, second], axis=1).view(np.uint8)
