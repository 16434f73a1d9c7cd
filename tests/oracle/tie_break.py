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
GOLDEN = 0x9E3779B97F4A7C15

SALT_BROKER_ID = 0
SALT_ROUTE = 1
SALT_DATABASE = 2
SALT_RE_ENTERED = 3


def mix(x: int) -> int:
    """R24: mixes the bits of a 64-bit word."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % WORD
    x ^= x >> 27
    x = x * 0x94D049BB133111EB % WORD
    x ^= x >> 31
    return x


def stable_hash(conversation_id: UUID, salt: int) -> int:
    """R24: H(conversation_id, salt)."""
    high = int.from_bytes(conversation_id.bytes[:8], "big")
    low = int.from_bytes(conversation_id.bytes[8:], "big")
    stirred = mix((high + GOLDEN * (salt + 1)) % WORD)
    return mix((mix(stirred ^ low) + GOLDEN) % WORD)


def pick_by_hash(candidates: Sequence[Candidate], conversation_id: UUID, salt: int) -> Candidate:
    """R24: returns candidate `floor(h * n / 2^64)` of the `n` candidates."""
    return candidates[stable_hash(conversation_id, salt) * len(candidates) // WORD]


def pick_by_turn(candidates: Sequence[Candidate], turns: Turns, key: Hashable) -> Candidate:
    """R24: returns candidate `turn mod n` of the `n` candidates, and increments the turn."""
    picked = candidates[turns[key] % len(candidates)]
    turns[key] += 1
    return picked
