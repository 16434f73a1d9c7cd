"""Settings of the dialog protocol, and the backoff of retries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ssbroker._arguments import boolean, whole_number
from ssbroker.exceptions import OptionError

LIFETIME_MAX: Final = 2**31 - 1
"""The maximum lifetime or timer, in seconds, and the default lifetime of a conversation."""
DESCRIPTION_MAX: Final = 3000
"""The maximum length of an error description, in characters."""
BODY_MAX: Final = 10**9 - 2**10
"""The maximum length of a message, in bytes: a SQLite row holds no more, and the other columns need some of it."""

SECOND: Final = 1_000_000
"""In microseconds, as all times of the protocol."""

RETRY_WAITS: Final = tuple(seconds * SECOND for seconds in (4, 8, 16, 32, 64))
"""The waits, the last of which repeats (fact 91)."""

JITTER: Final = 0.125
"""How much longer or shorter a wait may be. Without it an outage that recurs in step with the waits starves a dialog for ever."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits, with numbers for their jitter.

    Attributes:
        random: Gives numbers from 0 to below 1; such as `random.Random(seed).random`.

    Examples:
        >>> patience = Backoff(random=lambda: 0.5)
        >>> [patience.wait(attempt) // SECOND for attempt in range(7)]
        [4, 8, 16, 32, 64, 64, 64]
        >>> Backoff(random=lambda: 0.0).wait(0) / SECOND
        3.5
    """

    random: Callable[[], float]

    def wait(self, attempt: int) -> int:
        """How long to wait for an acknowledgement.

        Args:
            attempt: How often the fragment was sent again before.

        Returns:
            Microseconds.

        Examples:
            >>> Backoff(random=lambda: 0.5).wait(2)
            16000000
        """
        return round(self._base(attempt) * (1 + JITTER * (2 * self.random() - 1)))

    def _base(self, attempt: int) -> int:
        return RETRY_WAITS[min(attempt, len(RETRY_WAITS) - 1)]

    @property
    def max_wait(self) -> int:
        """The longest wait.

        Examples:
            >>> Backoff(random=lambda: 0.5).max_wait / SECOND
            72.0
        """
        return round(RETRY_WAITS[-1] * (1 + JITTER))


WINDOW_FRAGMENTS_MAX: Final = 1024
SEQUENCE_DISTANCE_MAX: Final = 4 * WINDOW_FRAGMENTS_MAX
"""How far ahead of the first message that is missing one is taken, whatever window its sender has."""
FRAGMENT_BYTES_MIN: Final = 2048
"""With smaller parts the largest message has more than 2**20 fragments, and far sides refuse every one of them, for ever (M16)."""
Integrity: TypeAlias = Literal["strict", "compat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSettings:
    """How the protocol is set up; what is not given is as the decisions have it.

    Attributes:
        max_fragment_bytes: The largest part of a message that goes in one fragment.
        window_fragments: How many fragments of a dialog may be unacknowledged (B33).
        window_bytes: And how many bytes of them.
        ahead_bytes: With how many bytes of messages begun and not acknowledged in order no further one is begun: the far side keeps them (P14).
        turn_fragments: How many fragments of one dialog go before it is another's turn (P13).
        acknowledgement_wait: How long an acknowledgement waits for a message that could carry it, in microseconds (B35).
        max_pending_bytes: What may wait for one dialog of incomplete and early messages (P26), with 512 bytes for each fragment, and how much of
            what has waited becomes whole at once (N38). A message that is larger than that never becomes whole here, and its sender tries
            until its lifetime ends.
        max_message_bytes: The largest message that is received; no more than a row of a queue holds.
        integrity: "strict" seals secured dialogs and takes only what is sealed; "compat" sends and takes encrypted MD5 signatures alone,
            which find accidents and not attackers (P22), and leaves acknowledgements without proof.
        honor_priority: Whether dialogs with a higher priority send first (B19).

    Raises:
        OptionError: One of them is not what it can be.

    Examples:
        >>> ProtocolSettings(window_fragments=0)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: window_fragments: expected a whole number from 1 to 1024; got 0
    """

    max_fragment_bytes: int = 32 << 10
    window_fragments: int = 1024
    window_bytes: int = 4 << 20
    ahead_bytes: int = 64 << 20
    turn_fragments: int = 64
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
            "ahead_bytes",
            "turn_fragments",
            "max_message_bytes",
        ):
            whole_number(getattr(self, name), name=name, minimum=1, maximum=most.get(name, 2**31 - 1))
        whole_number(self.acknowledgement_wait, name="acknowledgement_wait", minimum=0, maximum=SECOND)
        whole_number(self.max_pending_bytes, name="max_pending_bytes", minimum=1, maximum=2**63 - 1)
        boolean(self.honor_priority, name="honor_priority")
        if self.integrity not in ("strict", "compat"):
            raise OptionError(f'integrity: expected "strict" or "compat"; got {self.integrity!r:.80}')

    @property
    def max_sequence_distance(self) -> int:
        """How far ahead of the first message that is not acknowledged another may be sent."""
        return 4 * self.window_fragments
