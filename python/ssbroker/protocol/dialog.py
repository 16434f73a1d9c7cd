"""One dialog endpoint in memory, and the errors that it reports to its peer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ssbroker.protocol.envelope import EnvelopeRow
from ssbroker.protocol.inbound_direction import InboundDirection
from ssbroker.protocol.settings import ProtocolSettings
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey
from ssbroker.protocol.transmission import Transmission
from ssbroker.security import SecuredDirection


@dataclass(slots=True, eq=False)
class Dialog:
    """An endpoint in memory: its row, transmission object, ciphers and receive state.

    Attributes:
        key: The key of the endpoint.
        endpoint: The row of the endpoint, as last committed.
        transmission: The transmission object of the endpoint.
        knows_queue_start: Whether the number of the first message in the transmission queue is known.
        is_drained: Whether the transmission queue contained no unsent messages when it was last read.
        has_new_messages: Whether messages were queued since the last check for an error with which the application ended the dialog.
        ended_with_error: Whether the application ended the dialog with an error, so that only this error is left to send.
        outbound_cipher: Seals outgoing fragments; None if the conversation has no keys.
        inbound_cipher: Opens received fragments.
        incoming: The receive state; None if it is not loaded.
        ack: The acknowledgement of durable messages: the last number received in order (None if none), and the ranges beyond it.
        ack_due: When the acknowledgement is sent separately; None if none is owed.
        unacked_fragments: The number of fragments received since the last acknowledgement.
        unacked_bytes: The number of bytes received since the last acknowledgement.
    """

    key: EndpointKey
    endpoint: DialogEndpoint
    transmission: Transmission
    knows_queue_start: bool = False
    is_drained: bool = False
    has_new_messages: bool = True
    ended_with_error: bool = False
    outbound_cipher: SecuredDirection | None = None
    inbound_cipher: SecuredDirection | None = None
    incoming: InboundDirection | None = None
    ack: tuple[int | None, bytes] = (None, b"")
    ack_due: int | None = None
    unacked_fragments: int = 0
    unacked_bytes: int = 0

    def must_ack_now(self, settings: ProtocolSettings) -> bool:
        """Returns whether a quarter of the initial send window is unacknowledged, so that the sender would soon stall."""
        return (
            4 * self.unacked_fragments >= settings.window_fragments or 4 * self.unacked_bytes >= settings.window_bytes
        )

    def owes_acknowledgement(self, now: int) -> bool:
        """Returns whether an acknowledgement is due."""
        return self.ack_due is not None and self.ack_due <= now

    def is_due(self, now: int) -> bool:
        """Returns whether an acknowledgement or a retransmission is due."""
        return self.owes_acknowledgement(now) or self.transmission.is_due(now)

    def replace_endpoint(self, endpoint: DialogEndpoint) -> None:
        """Replaces the row and the ciphers; keeps the send and receive states."""
        self.endpoint = endpoint
        if endpoint.session_key is not None:
            self.outbound_cipher = SecuredDirection(
                endpoint.session_key, conversation_id=endpoint.conversation_id, is_initiator=endpoint.is_initiator
            )
            self.inbound_cipher = make_inbound_cipher(endpoint.key, endpoint.far_session_key or endpoint.session_key)

    def bind(self, endpoint: DialogEndpoint) -> None:
        """Replaces the row after the peer has answered, and uses the key that the answer may contain."""
        self.endpoint = endpoint
        if endpoint.far_session_key is not None:
            self.inbound_cipher = make_inbound_cipher(endpoint.key, endpoint.far_session_key)

    def reply_with_peer_key(self) -> None:
        """Seals replies with the peer's session key, because no endpoint with a key of its own is created here."""
        peer_key = self.endpoint.far_session_key
        if peer_key is not None:
            self.endpoint = replace(self.endpoint, session_key=peer_key, far_session_key=None)
            self.outbound_cipher = SecuredDirection(peer_key, conversation_id=self.key[0], is_initiator=self.key[1])

    def mark_ack_sent(self) -> None:
        """Records that the acknowledgement is being sent."""
        self.ack_due = None
        self.unacked_fragments = self.unacked_bytes = 0


def make_dialog(endpoint: DialogEndpoint, transmission: Transmission | None = None) -> Dialog:
    """Loads an endpoint into memory, with its transmission object if the work table has one."""
    state = transmission or Transmission(endpoint.key, first_unsent=endpoint.send_sequence)
    dialog = Dialog(endpoint.key, endpoint, state, knows_queue_start=transmission is not None)
    dialog.replace_endpoint(endpoint)
    return dialog


def make_inbound_cipher(key: EndpointKey, session_key: bytes) -> SecuredDirection:
    """Returns the cipher that opens fragments from the peer of an endpoint, sealed with the given session key."""
    return SecuredDirection(session_key, conversation_id=key[0], is_initiator=not key[1])


@dataclass(frozen=True, slots=True)
class ErrorNotice:
    """A broker error that is sent to a peer (P11). It is not stored: if it is lost, the peer retries, and gets the error again.

    Attributes:
        dialog: The endpoint that reports the error; None if there is none.
        row: The fragment that the error answers, if the fragment did not come from the endpoint's peer.
        code: The Service Broker error number, negative.
        text: The description.
    """

    dialog: Dialog | None
    row: EnvelopeRow | None
    code: int
    text: str
