"""A session key reaches only the owner of the certificate, and can be used for one purpose only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.exceptions import InputError
from ssbroker.security.certificates import Validity, make_certificate
from ssbroker.security.key_exchange import (
    BLOB_AGE_MAX,
    BLOB_RENEWAL_AGE,
    CLOCK_SKEW_MAX,
    KEY_LIFETIME,
    SECOND,
    DialogCertificate,
    Direction,
    KeyOffers,
    KeyOpenings,
    parse_blob,
)
from tests.security.shared_certificates import BEGINS, ENDS, certified, own, public

KEY = bytes(range(32))
NOW = 1_800_000_000 * SECOND
OF = Direction(b"one conversation", True, "//Shop", "//Bank")
MINUTE = 60 * SECOND


def offered(
    *, anonymous: bool = False, now: int = NOW, of: Direction = OF, by: str = "Shop", to: str = "Bank"
) -> bytes:
    return KeyOffers().make_blob(KEY, of, receiver=public(to), sender=None if anonymous else own(by), now=now)


def opened(
    data: bytes,
    *,
    now: int = NOW,
    of: Direction = OF,
    by: str | None = "Shop",
    at: str = "Bank",
    openings: KeyOpenings | None = None,
    pays: Callable[[], bool] = lambda: True,
) -> bytes | None:
    blob = parse_blob(data)
    if blob is None:
        return None
    sender = None if by is None else public(by)
    return (openings or KeyOpenings()).open_blob(blob, of, receiver=own(at), sender=sender, now=now, may_use_rsa=pays)


@pytest.mark.parametrize("anonymous", [False, True])
def test_the_owner_of_the_certificate_gets_the_key(*, anonymous: bool) -> None:
    data = offered(anonymous=anonymous)
    blob = parse_blob(data)
    assert blob is not None
    assert blob.to_certificate == public("Bank").fingerprint
    assert blob.from_certificate == (None if anonymous else public("Shop").fingerprint)
    assert opened(data, by=None if anonymous else "Shop") == KEY
    assert KEY not in data
    assert repr(KEY)[2:20] not in repr(blob)


@pytest.mark.threat("T2")
@pytest.mark.parametrize("anonymous", [False, True])
def test_every_single_bit_flip_of_a_blob_is_refused(*, anonymous: bool) -> None:
    """No bit can be changed, removed or added."""
    data = offered(anonymous=anonymous)
    by = None if anonymous else "Shop"
    number, openings = int.from_bytes(data), KeyOpenings()
    for bit in range(8 * len(data)):
        assert opened((number ^ 1 << bit).to_bytes(len(data)), by=by, openings=openings) is None, bit
    for length in range(len(data)):
        assert opened(data[:length], by=by, openings=openings) is None
    assert opened(data + b"\0", by=by, openings=openings) is None
    assert opened(data, by=by, openings=openings) == KEY


@pytest.mark.threat("T2", "T17")
@pytest.mark.parametrize(
    "other",
    [
        replace(OF, conversation_id=b"two conversation"),
        replace(OF, is_initiator=False),
        replace(OF, from_service_name="//Sho"),
        replace(OF, to_service_name="//Thief"),
        replace(OF, from_service_name="//Shop//", to_service_name="Bank"),
    ],
)
def test_a_key_is_for_one_conversation_direction_and_pair_of_services(other: Direction) -> None:
    """In another place it decrypts nothing."""
    for anonymous in (False, True):
        assert opened(offered(anonymous=anonymous), of=other, by=None if anonymous else "Shop") is None


def test_another_certificate_neither_decrypts_nor_verifies() -> None:
    data = offered()
    assert opened(data, at="Thief") is None
    assert opened(data, by="Thief") is None
    assert opened(data, by=None) is None
    assert opened(offered(by="Thief"), by="Shop") is None
    assert opened(offered(anonymous=True), by="Shop") is None


@pytest.mark.threat("T1")
def test_a_signature_of_another_key_is_rejected() -> None:
    """A self-made key with a signature copied from another blob is rejected."""
    honest, forged = parse_blob(offered()), parse_blob(offered(by="Thief"))
    assert honest is not None
    assert forged is not None
    shop = public("Shop").fingerprint
    assert opened(replace(forged, from_certificate=shop).as_bytes) is None
    assert opened(replace(forged, from_certificate=shop, signature=honest.signature).as_bytes) is None
    taken_over = replace(honest, wrapped_key=forged.wrapped_key, sealed_key=forged.sealed_key)
    assert opened(taken_over.as_bytes) is None


def test_rsa_is_used_once_per_hour_and_pair_of_certificates() -> None:
    offers, openings = KeyOffers(), KeyOpenings()
    seen = set()
    for minute, conversation in enumerate(range(90)):
        of, now = replace(OF, conversation_id=conversation.to_bytes(16)), NOW + minute * MINUTE
        data = offers.make_blob(KEY, of, receiver=public("Bank"), sender=own("Shop"), now=now)
        blob = parse_blob(data)
        assert blob is not None
        seen.add((blob.wrapped_key, blob.signature))
        assert opened(data, of=of, now=now, openings=openings) == KEY
    assert len(seen) == 2
    for to, by in (("Thief", "Shop"), ("Bank", "Thief")):
        other = parse_blob(offers.make_blob(KEY, OF, receiver=public(to), sender=own(by), now=NOW + 90 * MINUTE))
        assert other is not None
        assert (other.wrapped_key, other.signature) not in seen


def test_a_clock_set_back_creates_a_new_key() -> None:
    offers = KeyOffers()
    offers.make_blob(KEY, OF, receiver=public("Bank"), sender=own("Shop"), now=NOW)
    data = offers.make_blob(KEY, OF, receiver=public("Bank"), sender=own("Shop"), now=NOW - MINUTE)
    assert opened(data, now=NOW - MINUTE) == KEY


@pytest.mark.threat("T2")
def test_a_replayed_blob_expires_before_closed_endpoints_are_removed() -> None:
    """A blob expires before the endpoint that it created is removed, whatever the clocks show."""
    data = offered()
    for now in (NOW, NOW + BLOB_AGE_MAX - 1, NOW - CLOCK_SKEW_MAX):
        assert opened(data, now=now) == KEY
    for now in (NOW + BLOB_AGE_MAX, NOW + KEY_LIFETIME, NOW - CLOCK_SKEW_MAX - 1):
        assert opened(data, now=now) is None
    assert BLOB_AGE_MAX + CLOCK_SKEW_MAX <= 30 * MINUTE
    assert BLOB_RENEWAL_AGE < BLOB_AGE_MAX


@pytest.mark.threat("T2")
def test_a_recorded_exchange_key_is_useless_after_its_hour() -> None:
    """Even if the key of an hour is found out: its creation time is signed by the sender."""
    blob = parse_blob(offered())
    assert blob is not None
    later = NOW + KEY_LIFETIME
    assert opened(replace(blob, created_at=later).as_bytes, now=later) is None
    assert opened(replace(blob, created_at=later, key_created_at=later).as_bytes, now=later) is None


@pytest.mark.rule("P26")
@given(st.binary(max_size=2048))
def test_random_bytes_are_rejected_without_an_exception(data: bytes) -> None:
    assert opened(data) is None
    assert opened(b"\1" + data) is None


@pytest.mark.rule("P26")
def test_the_number_of_remembered_bad_keys_is_limited() -> None:
    """Forged blobs cost an RSA operation each, but no memory."""
    openings = KeyOpenings()
    blob = parse_blob(offered())
    assert blob is not None
    for number in range(1100):
        forged = replace(blob, signature=number.to_bytes(256))
        assert opened(forged.as_bytes, openings=openings) is None
    assert len(openings._keys) == 1024
    assert opened(blob.as_bytes, openings=openings) == KEY


@pytest.mark.rule("P26")
def test_a_key_over_the_rate_limit_is_not_remembered_as_bad() -> None:
    """It is checked when it arrives again; known keys cost nothing."""
    openings, data, tokens = KeyOpenings(), offered(), iter([False, True])
    assert opened(data, openings=openings, pays=tokens.__next__) is None
    assert opened(data, openings=openings, pays=tokens.__next__) == KEY
    assert opened(data, openings=openings, pays=tokens.__next__) == KEY
    assert opened(data, now=NOW + BLOB_AGE_MAX, pays=tokens.__next__) is None, "what is too old costs nothing either"


def test_a_dialog_requires_rsa_of_2048_bits() -> None:

    validity = Validity(BEGINS, ENDS)
    with pytest.raises(InputError, match="with an RSA key"):
        DialogCertificate(make_certificate(["Shop"], validity).certificate)
    with pytest.raises(InputError, match="key of a different certificate"):
        DialogCertificate(certified("Shop").certificate, certified("Bank").key)
    with pytest.raises(InputError, match="with its private key"):
        public("Shop").sign(b"")
    assert not public("Shop").has_key
    assert own("Shop").has_key
    assert repr(own("Shop")) == "DialogCertificate('CN=Shop')"
