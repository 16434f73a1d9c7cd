"""Certificates that tests share: making an RSA key takes longer than most of them."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from ssbroker.security.certificates import CertificateWithKey, Validity, make_certificate
from ssbroker.security.key_exchange import DialogCertificate

BEGINS, ENDS = datetime(2020, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)


@cache
def certified(name: str, *, ends: datetime = ENDS, bits: int = 2048) -> CertificateWithKey:
    """Returns the certificate of that name, with its key; the same in all tests of a process."""
    return make_certificate([name], Validity(BEGINS, ends), kind="RSA", bits=bits)


@cache
def own(name: str) -> DialogCertificate:
    """With its private key."""
    made = certified(name)
    return DialogCertificate(made.certificate, made.key)


@cache
def public(name: str) -> DialogCertificate:
    """Without."""
    return DialogCertificate(certified(name).certificate)
