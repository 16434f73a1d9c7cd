"""An error of the broker that is sent to a peer."""

from __future__ import annotations

from dataclasses import dataclass

from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import EnvelopeRow


@dataclass(frozen=True, slots=True)
class ErrorNotice:
    """An error of the broker that is sent to a peer (P11); it is not stored, because the peer retries.

    Attributes:
        dialog: The endpoint that reports it; None if there is none.
        row: The fragment that it answers, if that did not come from the endpoint's peer.
        code: The Service Broker error number, negative.
        text: The description.
    """

    dialog: Dialog | None
    row: EnvelopeRow | None
    code: int
    text: str
