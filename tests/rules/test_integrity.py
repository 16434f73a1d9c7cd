"""What signatures of messages and fragments prevent."""

from __future__ import annotations

from dataclasses import replace
from hashlib import md5
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import ssbroker
from ssbroker.exceptions import SsbrokerError
from tests.oracle.traffic import Fragment
from tests.rules.fragments import (
    KEY,
    OTHER_KEY,
    A,
    B,
    messages,
    parts,
    pending_numbers,
    push,
    reasons,
    reassemble_all,
    rejected,
    single,
    unsigned,
)
from tests.worlds.fragment_tables import fragment_batch
from tests.worlds.fragments import KEY_COLUMN

# From `openssl enc -aes-...-cbc -nopad` with an initialization vector of zeros: the last block of the id of A, the header and the digest, and for
# fragments the message's signature before the digest; for the body "abcde" as message 12 of the initiator, in parts of two bytes.
KNOWN = {
    b"the key of A, 16": (
        "df2558790a30c6c58c27ffdb3779bd70",
        {0: "1bdcc86c83c135372954ab870eb70296", 2: "7466f2a4dec3d54267277854b9e73bd5"},
    ),
    b"the key of A: 24 bytes..": (
        "6bdfed67d5913ded15d80b4de739e8b1",
        {0: "7ef4a7fbbdc7fdfeb7edb2e7ea85dcc2", 2: "2e75418fba02a2fc3c7fb6ad5c76cfdc"},
    ),
    b"the key of A, of 32 bytes in all": (
        "01b8301db174e24498c6b02683025ad5",
        {0: "715d8f1aea86e7b7e8373f11f66d5e19", 2: "58f2444f1cc26719abe7ae07ad000192"},
    ),
}
KNOWN_OF_TARGET = "cfc27a33a6b17bbcdb14934c5ff1b3bd"
"""The message's signature by the first key, in the other direction."""

OTHER = bytes(16)
"""A signature of nothing."""


def keyed(*fragments: Fragment, key: bytes | None = KEY, **options: bool) -> ssbroker.Reassembly:
    """Reassembles in one call, with a session key for A."""
    return reassemble_all(*fragments, session_keys={} if key is None else {A: key}, **options)


def signed(fragment: Fragment) -> Fragment:
    """Returns the fragment with the MD5 of its own body."""
    return replace(fragment, fragment_signature=md5(fragment.body).digest())


@pytest.mark.rule("P21")
def test_a_message_with_a_valid_signature_is_released() -> None:
    """With the MD5 of the whole body alone, too."""
    fragments = [replace(each, fragment_signature=None) for each in parts(b"abcde")]
    assert fragments[0].message_signature == md5(b"abcde").digest()
    assert messages(reassemble_all(*fragments)) == [(0, b"abcde")]


@pytest.mark.rule("P21")
def test_a_message_with_an_invalid_signature_is_rejected_completely() -> None:
    """Every fragment, although each fragment's own signature is valid."""
    first, second, third = (replace(each, message_signature=OTHER) for each in parts(b"abcde"))
    result = reassemble_all(third, first, second)
    assert messages(result) == []
    assert rejected(result) == [(0, number, "corrupt_message") for number in range(3)]


@pytest.mark.rule("P21")
def test_a_message_of_one_fragment_is_verified_too() -> None:
    """The signature of its fragment may be valid while that of the message is not."""
    assert rejected(reassemble_all(replace(single(0, body=b"a"), message_signature=OTHER))) == [
        (0, 0, "corrupt_message")
    ]


@pytest.mark.rule("P21")
def test_a_corrupt_message_may_arrive_again() -> None:
    """In the same push, in a later one, and also if it waited for an earlier message."""
    for sequence in (0, 1):
        good = parts(b"abcde", sequence)
        bad = [signed(replace(good[0], body=b"!!")), *good[1:]]
        reassembler = ssbroker.Reassembler()
        assert reasons(push(reassembler, *bad, *bad)) == ["corrupt_message"] * 6
        assert pending_numbers(reassembler) == []
        assert reassembler.pending_bytes == 0
        assert messages(push(reassembler, *good, single(0)))[-1] == (sequence, b"abcde")


@pytest.mark.rule("P21")
def test_without_a_signature_nothing_is_verified() -> None:
    """Null, or no column."""
    fragments = unsigned(parts(b"abcde"))
    assert messages(reassemble_all(*fragments)) == [(0, b"abcde")]
    bare = fragment_batch(fragments).drop_columns(["message_signature", "fragment_signature"])
    result = ssbroker.reassemble(bare)
    assert messages(result) == [(0, b"abcde")]
    assert result.messages.column("message_signature").to_pylist() == [None]


@pytest.mark.rule("P23", "P13")
def test_a_corrupt_fragment_is_rejected_alone_and_may_arrive_again() -> None:
    """The other fragments are kept."""
    first, second, third = parts(b"abcde")
    reassembler = ssbroker.Reassembler()
    result = push(reassembler, first, replace(second, body=b"cx"), third)
    assert rejected(result) == [(0, 1, "corrupt_fragment")]
    assert messages(push(reassembler, second)) == [(0, b"abcde")]


@pytest.mark.rule("P23", "P21")
def test_a_corrupt_fragment_without_signature_is_detected_with_its_message() -> None:
    """It is accepted, and the message is rejected."""
    first, second, third = parts(b"abcde")
    assert (
        reasons(reassemble_all(first, replace(second, body=b"cx", fragment_signature=None), third))
        == ["corrupt_message"] * 3
    )


@pytest.mark.rule("P21", "P23")
@pytest.mark.parametrize("length", [0, 1, 15, 17, 32])
@pytest.mark.parametrize("column", ["message_signature", "fragment_signature"])
def test_a_signature_that_is_not_16_bytes_does_not_match(column: str, length: int) -> None:
    """It is not an error, even if nothing else would be verified."""
    bare = unsigned([single(0)])[0]
    good = single(0, conversation=B)
    odd: dict[str, Any] = {column: bytes(length)}
    result = reassemble_all(replace(bare, **odd), good)
    assert rejected(result) == [(0, 0, "corrupt_fragment")]
    assert result.messages.num_rows == 1


@pytest.mark.rule("P23")
def test_fragment_signatures_are_verified_before_duplicates() -> None:
    """A corrupt fragment of a complete message is not a duplicate and is not acknowledged."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(0))
    result = push(reassembler, replace(single(0), fragment_signature=OTHER))
    assert reasons(result) == ["corrupt_fragment"]
    assert result.acknowledgements.num_rows == 0


@pytest.mark.rule("P21", "P22")
@pytest.mark.parametrize("key", KNOWN, ids=len)
def test_signatures_under_a_session_key(key: bytes) -> None:
    """AES-128, -192 and -256, against the results of OpenSSL."""
    of_message, of_fragments = KNOWN[key]
    table = pa.table(
        {
            "conversation_id": [A.bytes],
            "is_initiator": [True],
            "message_sequence_number": [12],
            "message_body": [b"abcde"],
        }
    )
    rows = ssbroker.fragment(table, max_fragment_bytes=2, session_keys={A: key}).to_pylist()
    assert {row["message_signature"].hex() for row in rows} == {of_message}
    assert {number: rows[number]["fragment_signature"].hex() for number in (0, 2)} == of_fragments


@pytest.mark.rule("P22")
def test_signatures_depend_on_the_direction() -> None:
    other = parts(b"abcde", 12, size=99, key=KEY, initiator=False)[0]
    assert other.message_signature == bytes.fromhex(KNOWN_OF_TARGET)
    signature = parts(b"abcde", 12, size=99, key=KEY)[0].message_signature
    assert reasons(keyed(replace(other, message_signature=signature, fragment_signature=None))) == ["corrupt_message"]


def test_keys_by_id_in_any_form_or_by_column() -> None:
    """By a UUID, its text or its bytes, or in a column, which is omitted from the messages."""
    fragments = parts(b"abcde", key=KEY)
    for name in (A, str(A).upper(), A.bytes):
        assert messages(reassemble_all(*fragments, session_keys={name: KEY})) == [(0, b"abcde")]
    result = ssbroker.reassemble(fragment_batch(fragments, key_column=True), session_keys=KEY_COLUMN)
    assert messages(result) == [(0, b"abcde")]
    assert result.messages.schema.names == ssbroker.schemas.MESSAGES.names


@pytest.mark.parametrize("key", [b"", b"a key of 15 byt", b"a key of 17 bytes"])
def test_a_key_has_16_24_or_32_bytes(key: bytes) -> None:
    """Other lengths are errors, in the mapping and in the column."""
    fragment = replace(single(0), key=key)
    with pytest.raises(SsbrokerError):
        reassemble_all(fragment, session_keys={A: key})
    with pytest.raises(SsbrokerError):
        ssbroker.reassemble(fragment_batch([fragment], key_column=True), session_keys=KEY_COLUMN)


@pytest.mark.rule("P22")
def test_a_conversation_without_a_key_has_unencrypted_signatures() -> None:
    """Next to others that have one."""
    other = single(0, body=b"plain", conversation=B)
    assert messages(keyed(*parts(b"abcde", key=KEY), other)) == [(0, b"abcde"), (0, b"plain")]
    both = [replace(each, key=key) for key, each in ((KEY, parts(b"abcde", key=KEY, size=99)[0]), (None, other))]
    result = ssbroker.reassemble(fragment_batch(both, key_column=True), session_keys=KEY_COLUMN)
    assert messages(result) == [(0, b"abcde"), (0, b"plain")]


@pytest.mark.rule("P22")
def test_with_a_key_signatures_are_required() -> None:
    """The signature of the message always, that of the fragment if there are several."""
    several, alone = parts(b"abcde", key=KEY), parts(b"a", 1, key=KEY)
    missing = [
        replace(several[0], message_signature=None),
        replace(several[0], fragment_signature=None),
        replace(alone[0], message_signature=None),
    ]
    assert reasons(keyed(*missing)) == ["corrupt_fragment"] * 3
    assert messages(keyed(*several, replace(alone[0], fragment_signature=None))) == [(0, b"abcde"), (1, b"a")]


@pytest.mark.rule("P22", "P18")
@pytest.mark.parametrize("sequence", [0, 2], ids=["released", "held"])
@pytest.mark.parametrize("signature", [OTHER, md5(b"").digest()], ids=["any", "plain"])
def test_with_a_key_forged_duplicates_are_not_acknowledged(sequence: int, signature: bytes) -> None:
    """For a complete message, a single fragment without its own signature must match that of the message."""
    reassembler = ssbroker.Reassembler(session_keys={A: KEY})
    good = parts(b"a", sequence, key=KEY)[0]
    push(reassembler, *parts(b"abcde", key=KEY), good)
    forged = replace(good, body=b"", message_signature=signature, fragment_signature=None)
    result = push(reassembler, forged)
    assert reasons(result) == ["corrupt_message"]
    assert result.acknowledgements.num_rows == 0
    again = push(reassembler, forged, replace(good, fragment_signature=None))
    assert reasons(again) == ["corrupt_message", "duplicate"]
    assert again.acknowledgements.num_rows == 1


@pytest.mark.rule("P22", "P21")
def test_with_a_key_unencrypted_signatures_are_rejected() -> None:
    """And those of another key."""
    assert reasons(keyed(*parts(b"abcde"))) == ["corrupt_fragment"] * 3
    assert reasons(keyed(*parts(b"abcde", key=OTHER_KEY))) == ["corrupt_fragment"] * 3
    assert reasons(keyed(replace(single(0), fragment_signature=None))) == ["corrupt_message"]
    assert reasons(keyed(*parts(b"abcde", key=KEY), key=None)) == ["corrupt_fragment"] * 3


@pytest.mark.rule("P22")
def test_a_fragment_cannot_be_moved() -> None:
    """To another conversation, direction, sequence number, fragment number or count, or to another message."""
    mine = parts(b"abcde", key=KEY)
    other = parts(b"fghij", 1, key=KEY)
    moved = [
        replace(mine[0], conversation_id=UUID(int=A.int + 1)),
        replace(mine[0], is_initiator=False),
        replace(mine[0], sequence=1),
        replace(mine[0], number=1),
        replace(mine[0], count=4),
        replace(mine[0], message_signature=other[0].message_signature),
        replace(mine[0], body=other[0].body),
    ]
    keys = {A: KEY, UUID(int=A.int + 1): KEY}
    assert reasons(reassemble_all(*moved, session_keys=keys)) == ["corrupt_fragment"] * len(moved)


@pytest.mark.rule("P21")
def test_the_key_of_the_row_is_used() -> None:
    """Each fragment is verified with the key of its row, and the message with that of its first row."""
    first, second = parts(b"abcd", key=KEY)
    bare = unsigned([first])[0]
    unkeyed = replace(bare, message_signature=first.message_signature, key=None)
    for order, expected in (((second, unkeyed), []), ((unkeyed, second), ["corrupt_message"] * 2)):
        result = ssbroker.reassemble(fragment_batch(order, key_column=True), session_keys=KEY_COLUMN)
        assert reasons(result) == expected
