"""P31, P32: transmission objects as bytes."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.exceptions import MalformedDataError
from ssbroker.protocol.transmission import PACKED_MAX, Transmission, pack_transmission, unpack_transmission

KEY = (b"one conversation", True)


def random_object(seed: int, max_fragments: int) -> Transmission:
    """Returns an object with random sent and acknowledged fragments."""
    random = Random(seed)
    begins = random.choice([0, 1, 10**12])
    original = Transmission(
        KEY, acked=begins - 1, head=begins, last_interleaved=begins, last_used=random.randrange(10**15)
    )
    original.first_unsent = random.choice([0, begins, 2**63 - 1])
    for _ in range(random.randrange(max_fragments)):
        flight: dict[int, int] = {}
        head, count = original.head, random.choice([1, 1, 1, 1, 5, 40])
        for fragment in range(random.choice([count, random.randrange(count + 1)])):
            if original.is_next_unsent(head, fragment, count):
                original.mark_sent(head, fragment, count, 100)
                flight[head] = flight.get(head, 0) | 1 << fragment
        if original.cursor and random.random() < 0.5:
            after = max(original.head, original.last_interleaved) + 1
            original.mark_sent(after, 0, 1, 50)
            flight[after] = 1
        if original.cursor:
            break
        original.add_flight(flight, due=random.randrange(1, 10**15), attempt=random.randrange(9))
    for number in [number for number in original.in_flight if random.random() < 0.5]:
        first, last = sorted(random.randrange(original.in_flight[number].bit_length()) for _ in range(2))
        original.acknowledge(-1, [(number, first, number, last)])
    return original


@pytest.mark.rule("P31", "P32")
@given(seed=st.integers(0, 2**32), max_fragments=st.sampled_from([3, 30, 400]))
def test_an_unpacked_object_equals_the_original_or_has_less_sent(seed: int, max_fragments: int) -> None:
    """At most 1,024 bytes."""
    original = random_object(seed, max_fragments)
    data = pack_transmission(original)
    unpacked = unpack_transmission(data)
    assert len(data) <= PACKED_MAX == 1024
    assert (unpacked.key, unpacked.acked, unpacked.last_used, unpacked.is_dirty) == (
        original.key,
        original.acked,
        original.last_used,
        False,
    )
    assert unpacked.first_unsent == original.first_unsent
    due = min((flight.due for flight in original.flights), default=None)
    assert [flight.due for flight in unpacked.flights] == ([] if due is None else [due])
    if (unpacked.head, unpacked.cursor, unpacked.last_interleaved) == (
        original.head,
        original.cursor,
        original.last_interleaved,
    ):
        assert (unpacked.in_flight, unpacked.fragment_counts, unpacked.fragments_in_flight) == (
            original.in_flight,
            original.fragment_counts,
            original.fragments_in_flight,
        )
        assert unpacked.bytes_in_flight >= original.bytes_in_flight
        assert pack_transmission(unpacked) == data
    else:
        assert (unpacked.head, unpacked.cursor, unpacked.last_interleaved) == (
            original.acked + 1,
            0,
            original.acked + 1,
        )
        assert unpacked.in_flight == {}
        assert max_fragments == 400  # only if very scattered


def test_usual_objects_are_packed_exactly() -> None:
    """A full window of single messages, of which three in ten are missing."""
    random = Random(3)
    original = Transmission(KEY)
    for number in range(1024):
        original.mark_sent(number, 0, 1, 100)
    original.add_flight(dict.fromkeys(range(1024), 1), due=5, attempt=2)
    original.acknowledge(-1, [(number, 0, number, 0) for number in range(1, 1024) if random.random() < 0.7])
    assert unpack_transmission(pack_transmission(original)).in_flight == original.in_flight


@given(data=st.binary(max_size=1100), cut=st.integers(0, 66), flip=st.integers(0, 8 * 66 - 1))
def test_invalid_bytes_are_rejected_or_harmless(data: bytes, cut: int, flip: int) -> None:
    good = pack_transmission(Transmission(KEY))
    with pytest.raises(MalformedDataError):
        unpack_transmission(good[:cut] if cut < len(good) else b"")
    flipped = (int.from_bytes(good) ^ 1 << flip).to_bytes(len(good))
    for bad in (data, flipped):
        with suppress(MalformedDataError):
            assert isinstance(unpack_transmission(bad), Transmission)
