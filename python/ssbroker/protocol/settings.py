"""Settings and limits of the dialog protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ssbroker import _core
from ssbroker._arguments import boolean, integer_argument
from ssbroker.exceptions import OptionError

LIFETIME_MAX: Final = 2**31 - 1
"""The maximum lifetime or timer, in seconds, and the default lifetime of a conversation."""
DESCRIPTION_MAX: Final = 3000
"""The maximum length of an error description, in characters."""
BODY_MAX: Final = _core.BODY_MAX
"""The maximum length of a message, in bytes: the maximum size of a SQLite row, less some space for the other columns."""

SECOND: Final = 1_000_000
"""One second in microseconds, the unit of all times in the protocol."""


WINDOW_FRAGMENTS_MAX: Final = 1024
SEQUENCE_DISTANCE_MAX: Final = 4 * WINDOW_FRAGMENTS_MAX
"""How far a message may be ahead of the next expected message, whatever the sender's window is."""
FRAGMENT_BYTES_MIN: Final = 2048
"""The minimum fragment size. The largest message would need more than 2**20 smaller fragments, and peers would always refuse it."""
Integrity: TypeAlias = Literal["strict", "compat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSettings:
    """The settings of the protocol.

    Attributes:
        max_fragment_bytes: The maximum number of body bytes in a fragment.
        window_fragments: The maximum number of unacknowledged fragments of a dialog.
        window_bytes: The initial maximum number of unacknowledged bytes of a dialog.
        max_window_bytes: The maximum number of unacknowledged bytes of a message of several fragments, while
            acknowledgements arrive within a second.
        max_ahead_bytes: The maximum total size in bytes of the messages of a dialog that have been started and are not
            yet acknowledged in order; above this limit, no further message is started. The peer has to buffer these
            messages.
        fragments_per_turn: The number of fragments of one dialog that are sent before the next dialog gets its turn.
        acknowledgement_wait: How many microseconds an acknowledgement waits for a message that can carry it.
        max_pending_bytes: The maximum total size in bytes of one dialog's messages that wait for an earlier message;
            each fragment counts as its size plus 512 bytes. About as many bytes are reassembled at a time. The next
            expected message may be larger, but its fragments, counted as 512 bytes each, must not exceed this limit.
        max_message_bytes: The size of the largest message that is received; at most the size that a queue row can
            contain. A larger message, and the messages after it, are never received; their sender retries until the
            lifetime of the conversation ends. The transmission status at the sender names the reason, unless a
            forwarder is between the two instances; the event Message Undeliverable of this instance always names it.
        integrity: "strict" encrypts the fragments of secured dialogs with AES-256-GCM, and accepts only such fragments.
            "compat" sends and accepts encrypted MD5 signatures, which detect accidents but not attackers, and does not
            authenticate acknowledgements.
        honor_priority: Whether dialogs with a higher priority send first.

    Raises:
        OptionError: A value is invalid.

    Examples:
        >>> from ssbroker import ProtocolSettings
        >>> ProtocolSettings(max_fragment_bytes=16 << 10).max_fragment_bytes
        16384
        >>> ProtocolSettings(window_fragments=0)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: window_fragments: expected an integer from 1 to 1024, got 0
    """

    max_fragment_bytes: int = 64 << 10
    window_fragments: int = 1024
    window_bytes: int = 4 << 20
    max_window_bytes: int = 32 << 20
    max_ahead_bytes: int = 64 << 20
    fragments_per_turn: int = 64
    acknowledgement_wait: int = SECOND
    max_pending_bytes: int = 256 << 20
    max_message_bytes: int = BODY_MAX
    integrity: Integrity = "strict"
    honor_priority: bool = False

    def __post_init__(self) -> None:
        most = {"window_fragments": WINDOW_FRAGMENTS_MAX, "max_message_bytes": BODY_MAX}
        for name in (
            "max_fragment_bytes",
            "window_fragments",
            "window_bytes",
            "max_window_bytes",
            "max_ahead_bytes",
            "fragments_per_turn",
            "max_message_bytes",
        ):
            integer_argument(getattr(self, name), name=name, minimum=1, maximum=most.get(name, 2**31 - 1))
        integer_argument(self.acknowledgement_wait, name="acknowledgement_wait", minimum=0, maximum=SECOND)
        integer_argument(self.max_pending_bytes, name="max_pending_bytes", minimum=1, maximum=2**63 - 1)
        boolean(self.honor_priority, name="honor_priority")
        if self.integrity not in ("strict", "compat"):
            raise OptionError(f'integrity: expected "strict" or "compat", got {self.integrity!r:.80}')

    @property
    def max_sequence_distance(self) -> int:
        """The maximum distance in sequence numbers between the first unacknowledged message and a later message that is sent."""
        return 4 * self.window_fragments
