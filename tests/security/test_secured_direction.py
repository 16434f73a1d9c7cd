"""Session keys, encryption and signatures, against known answers and against tampering."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

import ssbroker
from ssbroker.exceptions import MissingDependencyError, OptionError
from ssbroker.security import SecuredDirection, derive_keys

KEY = bytes(range(32))
CONVERSATION = bytes(range(100, 116))
HEADER = b"what the part belongs to"


def direction(*, key: bytes = KEY, conversation: bytes = CONVERSATION, is_initiator: bool = True) -> SecuredDirection:
    return SecuredDirection(key, conversation_id=conversation, is_initiator=is_initiator)


def hkdf(key: bytes, info: bytes, length: int) -> bytes:
    """Computes HKDF-SHA-256 without salt, following the text of RFC 5869."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    block, out = b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([number]), "sha256")
        out += block
    return out[:length]


def test_the_reference_hkdf_gives_the_answer_of_rfc_5869() -> None:
    """Test case 3: no salt, no info."""
    assert hkdf(b"\x0b" * 22, b"", 42).hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


@pytest.mark.parametrize(("is_initiator", "word"), [(True, b"initiator\0"), (False, b"target\0")])
def test_keys_are_derived_by_hkdf_for_one_conversation_and_direction(*, is_initiator: bool, word: bytes) -> None:
    keys = derive_keys(KEY, conversation_id=CONVERSATION, is_initiator=is_initiator)
    material = hkdf(KEY, b"ssbroker dialog 2\0" + word + CONVERSATION, 160)
    assert (keys.seal, keys.broker_errors, keys.header, keys.signature) == (
        material[:32],
        material[32:96],
        material[96:128],
        material[128:],
    )


def test_repr_hides_keys() -> None:
    keys = derive_keys(KEY, conversation_id=CONVERSATION, is_initiator=True)
    assert keys.seal.hex() not in repr(keys)
    assert repr(keys.seal) not in repr(keys)


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(33), "x" * 32, None])
def test_a_session_key_has_32_bytes(key: object) -> None:
    with pytest.raises(OptionError, match="session_key: expected 32 bytes"):
        derive_keys(key, conversation_id=CONVERSATION, is_initiator=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("is_initiator", "is_bound", "nonce"),
    [
        (True, False, "800000000000000500000007"),
        (True, True, "800000000000000580000007"),
        (False, False, "000000000000000500000007"),
        (False, True, "000000000000000580000007"),
    ],
)
def test_the_nonce_of_a_fragment_is_its_position(*, is_initiator: bool, is_bound: bool, nonce: str) -> None:
    keys = derive_keys(KEY, conversation_id=CONVERSATION, is_initiator=is_initiator)
    sealed = direction(is_initiator=is_initiator).seal(
        b"part", sequence=5, fragment=7, is_bound=is_bound, header=HEADER
    )
    salt, rest = sealed[:16], sealed[16:]
    key = hmac.new(keys.seal, salt, hashlib.sha256).digest()
    assert rest == AESGCM(key).encrypt(bytes.fromhex(nonce), b"part", HEADER)


@pytest.mark.threat("T2", "T25")
def test_a_restored_sender_encrypts_reused_numbers_with_another_key() -> None:
    """The same key and nonce for two messages would reveal both and the authentication key; retransmissions stay the same."""
    place: dict[str, Any] = {"sequence": 5, "fragment": 0, "is_bound": True, "header": HEADER}
    before, restored, receiver = direction(), direction(), direction()
    bodies = b"pay 100 to Ann..", b"pay 900 to Bob.."
    first, second = before.seal(bodies[0], **place), restored.seal(bodies[1], **place)
    assert first[:16] != second[:16]
    streams = [
        bytes(a ^ b for a, b in zip(each[16:], body, strict=False))
        for each, body in zip((first, second), bodies, strict=True)
    ]
    assert streams[0] != streams[1]
    assert first == before.seal(bodies[0], **place)
    for sealed, body in ((first, bodies[0]), (second, bodies[1]), (first, bodies[0])):
        assert receiver.open(sealed, **place) == body
    assert receiver.open(first[:16] + second[16:], **place) is None


def test_a_notice_is_encrypted_without_a_nonce() -> None:
    keys = derive_keys(KEY, conversation_id=CONVERSATION, is_initiator=True)
    assert direction().seal_notice(b"gone", header=HEADER) == AESSIV(keys.broker_errors).encrypt(b"gone", [HEADER])


def test_a_header_is_signed_with_hmac() -> None:
    keys = derive_keys(KEY, conversation_id=CONVERSATION, is_initiator=True)
    signature = direction().sign_header(HEADER)
    assert signature == hmac.new(keys.header, HEADER, hashlib.sha256).digest()[:16]
    assert direction().verify_header(HEADER, signature)


@pytest.mark.rule("P22")
def test_every_bit_flip_of_fragment_and_header_is_rejected() -> None:
    """In the encrypted fragment, its tag, and the header."""
    secured = direction()
    sealed = secured.seal(b"pay 100 to Ann", sequence=1, fragment=0, is_bound=True, header=HEADER)
    notice = secured.seal_notice(b"gone", header=HEADER)
    signature = secured.sign_header(HEADER)
    place: dict[str, Any] = {"sequence": 1, "fragment": 0, "is_bound": True}
    for flipped in flips(sealed):
        assert secured.open(flipped, header=HEADER, **place) is None
    for flipped in flips(notice):
        assert secured.open_notice(flipped, header=HEADER) is None
    for flipped in flips(HEADER):
        assert secured.open(sealed, header=flipped, **place) is None
        assert secured.open_notice(notice, header=flipped) is None
        assert not secured.verify_header(flipped, signature)
    for flipped in flips(signature):
        assert not secured.verify_header(HEADER, flipped)
    assert secured.open(sealed, header=HEADER, **place) == b"pay 100 to Ann"


def flips(data: bytes) -> list[bytes]:
    number = int.from_bytes(data)
    return [(number ^ (1 << bit)).to_bytes(len(data)) for bit in range(8 * len(data))]


@pytest.mark.rule("P22")
@pytest.mark.threat("T2")
def test_a_fragment_is_rejected_at_any_other_position() -> None:
    """Another dialog, direction, sequence number, fragment number or key, or with and without the broker id of the target."""
    sealed = direction().seal(b"part", sequence=1, fragment=2, is_bound=True, header=HEADER)
    here: dict[str, Any] = {"sequence": 1, "fragment": 2, "is_bound": True, "header": HEADER}
    assert direction().open(sealed, **here) == b"part"
    for other in (
        {"sequence": 2},
        {"sequence": 0},
        {"fragment": 1},
        {"is_bound": False},
        {"sequence": 2, "fragment": 1},
    ):
        assert direction().open(sealed, **{**here, **other}) is None
    for elsewhere in (
        direction(is_initiator=False),
        direction(conversation=bytes(16)),
        direction(key=bytes(32)),
    ):
        assert elsewhere.open(sealed, **here) is None
        assert not elsewhere.verify_header(HEADER, direction().sign_header(HEADER))
        assert elsewhere.open_notice(direction().seal_notice(b"gone", header=HEADER), header=HEADER) is None


@pytest.mark.rule("P22")
@pytest.mark.parametrize("length", range(33))
def test_truncated_fragments_are_rejected(length: int) -> None:
    sealed = direction().seal(b"", sequence=0, fragment=0, is_bound=True, header=HEADER)
    opened = direction().open(sealed[:length], sequence=0, fragment=0, is_bound=True, header=HEADER)
    assert opened == (b"" if length == len(sealed) else None)
    assert direction().open_notice(sealed[:length], header=HEADER) is None


def test_no_key_and_nonce_are_used_with_two_headers() -> None:
    """A fragment that is sent again has the same bytes; they change only when the broker id of the target becomes known."""
    secured = direction()
    first, again, bound = (
        secured.seal(b"part", sequence=0, fragment=0, is_bound=is_bound, header=HEADER)
        for is_bound in (False, False, True)
    )
    assert first == again
    assert first[16:20] != bound[16:20]  # another keystream, and not only another tag


@pytest.mark.rule("P21")
@pytest.mark.parametrize("is_initiator", [True, False])
def test_encrypted_digests_decrypt_to_md5(*, is_initiator: bool) -> None:
    """The native module encrypts the MD5 with the key."""
    secured = direction(is_initiator=is_initiator)
    bodies = [b"", b"one", b"a longer body"]
    messages = pa.table(
        {
            "conversation_id": pa.array([CONVERSATION] * 3, pa.binary(16)),
            "is_initiator": [is_initiator] * 3,
            "message_sequence_number": [0, 1, 2**40],
            "message_body": bodies,
        }
    )
    rows = ssbroker.fragment(
        messages, max_fragment_bytes=4, session_keys={CONVERSATION: secured.signature_key}
    ).to_pylist()
    digests = secured.message_digests(
        [row["message_sequence_number"] for row in rows], [row["message_signature"] for row in rows]
    )
    assert set(zip([row["message_sequence_number"] for row in rows], digests, strict=True)) == {
        (number, hashlib.md5(body).digest()) for number, body in zip([0, 1, 2**40], bodies, strict=True)
    }
    places = [(row["message_sequence_number"], row["fragment_number"], row["fragment_count"]) for row in rows]
    parts = secured.fragment_digests(
        places, [row["message_signature"] for row in rows], [row["fragment_signature"] for row in rows]
    )
    assert parts == [hashlib.md5(row["message_body"]).digest() for row in rows]


def test_digests_of_no_rows() -> None:
    assert direction().message_digests([], []) == direction().fragment_digests([], [], []) == []


def test_cryptography_is_imported_on_first_use() -> None:
    """Importing ssbroker.security does not need it; using it without it reports which extra to install."""
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import ssbroker.security as security\n"
        "try: security.derive_keys(bytes(32), conversation_id=bytes(16), is_initiator=True)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(MissingDependencyError.__name__)
    assert "ssbroker[broker]" in done.stdout
