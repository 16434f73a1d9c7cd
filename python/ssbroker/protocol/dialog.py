"""An endpoint while it is in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ssbroker.protocol.incoming import Incoming
from ssbroker.protocol.ledger import Endpoint, Key
from ssbroker.protocol.settings import Settings
from ssbroker.protocol.transmission import Transmission
from ssbroker.security import SecuredDirection


@dataclass(slots=True, eq=False)
class Dialog:
    """An endpoint while it is in memory: its row, its transmission object, its keys, and what of the far side's messages is loaded.

    Attributes:
        key: Which endpoint it is.
        endpoint: Its row, as last committed.
        transmission: What it has sent.
        is_known: Whether it is known where its transmission queue begins.
        is_drained: Whether all that its transmission queue held was sent, when it was last read.
        is_told: Whether more was put into its transmission queue since it was last asked whether the application has ended the dialog (N30).
        has_ended: Whether the application has ended it with an error, which is all that is left to send.
        outbound: Seals what it sends; None for a plain conversation.
        inbound: Opens what it receives.
        incoming: What it is receiving; None while that is not loaded.
        ack: The acknowledgement: what is durable here, up to a number (None for none) and beyond.
        ack_due: When it goes alone; None where none is due.
        ack_owed: How many fragments were taken since the last acknowledgement.
        ack_owed_bytes: And how many bytes.
    """

    key: Key
    endpoint: Endpoint
    transmission: Transmission
    is_known: bool = False
    is_drained: bool = False
    is_told: bool = True
    has_ended: bool = False
    outbound: SecuredDirection | None = None
    inbound: SecuredDirection | None = None
    incoming: Incoming | None = None
    ack: tuple[int | None, bytes] = (None, b"")
    ack_due: int | None = None
    ack_owed: int = 0
    ack_owed_bytes: int = 0

    def is_pressed(self, settings: Settings) -> bool:
        """Whether a quarter of the window waits for the acknowledgement, so that the sender soon has to."""
        return 4 * self.ack_owed >= settings.window_fragments or 4 * self.ack_owed_bytes >= settings.window_bytes

    def is_due(self, moment: int) -> bool:
        """Whether it has to acknowledge or to send something again."""
        if self.ack_due is not None and self.ack_due <= moment:
            return True
        return self.transmission.is_due(moment)

    def bind(self, endpoint: Endpoint) -> None:
        """Takes over the row as it is now that the far side has answered, with the key that it may have brought."""
        self.endpoint = endpoint
        if endpoint.far_session_key is not None:
            self.inbound = inbound_of(endpoint.key, endpoint.far_session_key)

    def answers_unmade(self) -> None:
        """Has what is answered sealed under the far side's key: no endpoint is made here, with which one of its own would go there."""
        given = self.endpoint.far_session_key
        if given is not None:
            self.endpoint = replace(self.endpoint, session_key=given, far_session_key=None)
            self.outbound = SecuredDirection(given, conversation_id=self.key[0], is_initiator=self.key[1])

    def paid(self) -> None:
        """Notes that the acknowledgement goes now."""
        self.ack_due = None
        self.ack_owed = self.ack_owed_bytes = 0


def dialog_of(endpoint: Endpoint, transmission: Transmission | None = None) -> Dialog:
    """An endpoint, taken into memory.

    Args:
        endpoint: Its row.
        transmission: Its transmission object, where the work table had one.

    Returns:
        The dialog.

    Examples:
        >>> row = Endpoint(conversation_id=bytes(16), is_initiator=True, service_name="Shop", broker_instance=bytes(16),
        ...                far_service_name="Bank")
        >>> dialog_of(row).transmission.head
        0
    """
    begun = transmission or Transmission(endpoint.key, unsent=endpoint.send_sequence)
    dialog = Dialog(endpoint.key, endpoint, begun, is_known=transmission is not None)
    if endpoint.session_key is not None:
        dialog.outbound = SecuredDirection(
            endpoint.session_key, conversation_id=endpoint.conversation_id, is_initiator=endpoint.is_initiator
        )
        dialog.inbound = inbound_of(endpoint.key, endpoint.far_session_key or endpoint.session_key)
    return dialog


def inbound_of(key: Key, session_key: bytes) -> SecuredDirection:
    """What opens that which the far side of an endpoint sends.

    Args:
        key: The endpoint.
        session_key: With what the far side seals.

    Returns:
        The direction towards the endpoint.

    Examples:
        >>> inbound_of((bytes(16), True), bytes(32)).is_signed(b"header", bytes(16))
        False
    """
    return SecuredDirection(session_key, conversation_id=key[0], is_initiator=not key[1])
