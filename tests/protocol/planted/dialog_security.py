from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from ssbroker.protocol import envelope
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import EnvelopeRow, Protection
from ssbroker.protocol.row_opener import OpenedBatch, RowOpener
from ssbroker.security import SecuredDirection
from ssbroker.security import secured_direction as security

_NUMBER: Final = 4
"""The index of the sequence number among the arguments of `header_as_bytes`."""


def header_signatures_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """P22: any header is trusted."""
    patch.setattr(SecuredDirection, "verify_header", lambda *_: True)


def digests_of_headers_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """P21: in an unsecured dialog, a damaged header is trusted."""
    patch.setattr(EnvelopeRow, "has_valid_digest", property(lambda _: True, lambda *_: None))


def digests_of_parts_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """P21, P23: in an unsecured dialog, a damaged body is trusted."""
    opened = RowOpener._verify

    def accept_all(self: RowOpener, row: EnvelopeRow, dialog: Dialog) -> bytes | None:
        part = opened(self, row, dialog)
        if row.security == Protection.PLAIN:
            row.fragment_signature = row.message_signature = None
        return part

    patch.setattr(RowOpener, "_verify", accept_all)


def sequence_numbers_are_not_signed(patch: pytest.MonkeyPatch) -> None:
    """P22: nothing binds a fragment to its sequence number."""
    patch.setattr(
        SecuredDirection,
        "_nonce",
        lambda self, _, fragment, bound: security._NONCE.pack(fragment, bound),
    )
    header: Callable[..., bytes] = envelope.encode_header

    def without_number(*fields: Any) -> bytes:
        return header(*fields[:_NUMBER], 0, *fields[_NUMBER + 1 :])

    patch.setattr(envelope, "encode_header", without_number)
    patch.setattr(SecuredDirection, "message_digests", lambda _, numbers, __: [None] * len(numbers))


def headers_without_names(patch: pytest.MonkeyPatch) -> None:
    """P22: the names of services and message type are not signed."""
    patch.setattr(envelope, "encode_header", lambda *fields: bytes(8) + fields[0] + bytes([fields[_NUMBER] % 256]))


def acknowledgements_are_not_signed(patch: pytest.MonkeyPatch) -> None:
    """P22: an acknowledgement in a message's header is not signed."""
    signed = envelope.signature_input
    patch.setattr(
        envelope, "signature_input", lambda header, message, fragment, *_: signed(header, message, fragment, None, None)
    )


def bodies_are_not_sealed(patch: pytest.MonkeyPatch) -> None:
    """P22: bodies of a secured dialog are not encrypted."""
    patch.setattr(SecuredDirection, "seal", lambda _, part, **__: part)
    patch.setattr(SecuredDirection, "open", lambda _, part, **__: part)


def nonce_reused_for_two_headers(patch: pytest.MonkeyPatch) -> None:
    """R8: a fragment has the same nonce before and after the target's broker id is known."""
    nonce = SecuredDirection._nonce
    patch.setattr(SecuredDirection, "_nonce", lambda self, number, fragment, _: nonce(self, number, fragment, False))


def random_nonces(patch: pytest.MonkeyPatch) -> None:
    """A resent fragment has other bytes."""
    seal, opened = SecuredDirection.seal, SecuredDirection.open
    numbers = iter(range(1 << 40))

    def salted(self: SecuredDirection, part: bytes, **place: Any) -> bytes:
        salt = next(numbers).to_bytes(8)
        return salt + seal(self, part, **{**place, "header": place["header"] + salt})

    def unsalted(self: SecuredDirection, part: bytes, **place: Any) -> bytes | None:
        return opened(self, part[8:], **{**place, "header": place["header"] + part[:8]})

    patch.setattr(SecuredDirection, "seal", salted)
    patch.setattr(SecuredDirection, "open", unsalted)


def downgrades_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """P22: rows with MD5 signatures only are accepted by a strict instance."""
    begun = RowOpener.__init__
    patch.setattr(
        RowOpener, "__init__", lambda self, *given, **options: begun(self, *given, **{**options, "integrity": "compat"})
    )


def unencrypted_fragments_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """P22: an unencrypted fragment is accepted without a key."""
    proven = RowOpener._verify

    def accept_both(self: RowOpener, row: EnvelopeRow, dialog: Dialog) -> bytes | None:
        if row.security != Protection.PLAIN or dialog.inbound_cipher is None:
            return proven(self, row, dialog)
        inbound, dialog.inbound_cipher = dialog.inbound_cipher, None
        try:
            return proven(self, row, dialog)
        finally:
            dialog.inbound_cipher = None if row.is_sequenced else inbound

    patch.setattr(RowOpener, "_verify", accept_both)


def inconsistent_headers_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """P26: contradictions between header fields are not checked."""
    patch.setattr(EnvelopeRow, "is_well_formed", property(lambda _: True))


def principals_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """P25: a broker id is trusted as a credential."""
    begun = RowOpener.__init__
    patch.setattr(
        RowOpener, "__init__", lambda self, *given, **options: begun(self, *given, **{**options, "peer": None})
    )


def any_service_may_answer(patch: pytest.MonkeyPatch) -> None:
    """R8, P25: services, contract, broker ids and certificate are not compared with the endpoint's."""
    patch.setattr(RowOpener, "_is_misdirected", lambda *_: False)


def the_second_copy_gets_no_error(patch: pytest.MonkeyPatch) -> None:
    """R8: another copy of the service that answers too waits forever."""
    opened = RowOpener.open

    def no_answer(self: RowOpener, rows: list[EnvelopeRow]) -> OpenedBatch:
        made = opened(self, rows)
        made.notices.clear()
        return made

    patch.setattr(RowOpener, "open", no_answer)
