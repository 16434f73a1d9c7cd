"""R24: the pick among several equally good candidates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar
from uuid import UUID

Candidate = TypeVar("Candidate")
Turns = Counter[Hashable]
"""R24: the next turn for each set of candidates."""

WORD = 1 << 64
SEED = 42
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F
PRIME_3 = 0x165667B19E3779F9
PRIME_4 = 0x85EBCA77C2B2AE63
PRIME_5 = 0x27D4EB2F165667C5


def rotated(word: int, bits: int) -> int:
    """R24: a word of 64 bits, rotated to the left."""
    return (word << bits | word >> (64 - bits)) % WORD


def stable_hash(conversation_id: UUID) -> int:
    """R24: XXH64 of the 16 bytes with seed 42, as `xxhash64` in Spark."""
    mixed = (SEED + PRIME_5 + 16) % WORD
    for start in (0, 8):
        word = int.from_bytes(conversation_id.bytes[start : start + 8], "little")
        stirred = rotated(word * PRIME_2 % WORD, 31) * PRIME_1 % WORD
        mixed = (rotated(mixed ^ stirred, 27) * PRIME_1 + PRIME_4) % WORD
    mixed = (mixed ^ mixed >> 33) * PRIME_2 % WORD
    mixed = (mixed ^ mixed >> 29) * PRIME_3 % WORD
    return mixed ^ mixed >> 32


class HashNumber:
    """R24: the number that decides the picks of one conversation; each pick takes its share of it and leaves the rest."""

    def __init__(self, conversation_id: UUID) -> None:
        self.number = (stable_hash(conversation_id) + WORD // 2) % WORD
        """The hash as a signed number, counted from the lowest."""

    def pick(self, candidates: Sequence[Candidate]) -> Candidate:
        """R24: number `floor(number * n / 2^64)` of the `n` candidates."""
        position, self.number = divmod(self.number * len(candidates), WORD)
        return candidates[position]


def pick_by_turn(candidates: Sequence[Candidate], turns: Turns, key: Hashable) -> Candidate:
    """R24: returns candidate `turn mod n` of the `n` candidates, and increments the turn."""
    picked = candidates[turns[key] % len(candidates)]
    turns[key] += 1
    return picked
