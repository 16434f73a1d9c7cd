"""Which of the two addresses of a mirrored route is the principal (R51 to R54): a table, and who asks by it (N23, N24)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from ssbroker.protocol.config import JITTER, SECOND

MirroringRole: TypeAlias = Literal["principal", "mirror", "unknown"]
"""What an address says of a database. `unknown` is no claim: it has none of that id, or one that delivers nothing."""

ANSWER_TIMEOUT: Final = 10 * SECOND
"""How long a dial and an answer may take together; after that the address counts as silent."""
CHECK_INTERVAL: Final = 10 * SECOND
"""After how long the principal is asked again whether it still is, as long as messages go to it."""
ROUND_WAITS: Final = tuple(seconds * SECOND for seconds in (1, 2, 4, 8, 16))
"""Between two rounds of questions that found no principal; the last one repeats."""
ASK_AFTER_USE: Final = 128 * SECOND
"""How long questions go on after the last message that wanted to go: longer than the longest wait of P17."""


class MirrorSide(StrEnum):
    """One of the two addresses of a mirrored route."""

    ADDRESS = "address"
    MIRROR = "mirror"

    @property
    def other(self) -> MirrorSide:
        """The other one."""
        return MirrorSide.MIRROR if self is MirrorSide.ADDRESS else MirrorSide.ADDRESS


class MirroredRouteState(StrEnum):
    """What is known of a mirrored route."""

    UNKNOWN = "UNKNOWN"
    """Nothing has gone this way yet: both are asked (R51)."""
    PRINCIPAL_IS_ADDRESS = "PRINCIPAL_IS_ADDRESS"
    """Everything goes to the address, and the mirror is not contacted (R52)."""
    PRINCIPAL_IS_MIRROR = "PRINCIPAL_IS_MIRROR"
    """The other way round."""
    LOST_ADDRESS = "LOST_ADDRESS"
    """The address was the principal, and is silent or says that it no longer is: both are asked, nothing is sent (R54)."""
    LOST_MIRROR = "LOST_MIRROR"
    """The other way round."""
    CONTESTED = "CONTESTED"
    """Both claim the role, with the same number: nothing is sent (N24)."""


class AnswerState(StrEnum):
    """What came of the last question to one side."""

    PENDING = "PENDING"
    """Nothing yet."""
    CLAIMS = "CLAIMS"
    """It says that it is the principal."""
    DENIES = "DENIES"
    """It says that it is not, or does not know, or its claim is older than one of the other side (N24)."""
    SILENT = "SILENT"
    """It cannot be reached, or has not answered in time."""


_UN, _PA, _PM, _LA, _LM, _CO = MirroredRouteState
_UNHEARD, _CLAIMS, _DENIES, _SILENT = AnswerState

# fmt: off
TABLE: Final[dict[MirroredRouteState, dict[AnswerState, dict[AnswerState, MirroredRouteState]]]] = {
    # For each word of the address, down: what each word of the mirror makes of it, across.
    _UN: {
        _UNHEARD: {_UNHEARD: _UN, _CLAIMS: _UN, _DENIES: _UN, _SILENT: _UN},
        _CLAIMS:  {_UNHEARD: _UN, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_UNHEARD: _UN, _CLAIMS: _PM, _DENIES: _UN, _SILENT: _UN},
        _SILENT:  {_UNHEARD: _UN, _CLAIMS: _PM, _DENIES: _UN, _SILENT: _UN},
    },
    _PA: {
        _UNHEARD: {_UNHEARD: _PA, _CLAIMS: _PM, _DENIES: _PA, _SILENT: _PA},
        _CLAIMS:  {_UNHEARD: _PA, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_UNHEARD: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
        _SILENT:  {_UNHEARD: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
    },
    _PM: {
        _UNHEARD: {_UNHEARD: _PM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
        _CLAIMS:  {_UNHEARD: _PA, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_UNHEARD: _PM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
        _SILENT:  {_UNHEARD: _PM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
    },
    _LA: {
        _UNHEARD: {_UNHEARD: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
        _CLAIMS:  {_UNHEARD: _LA, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_UNHEARD: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
        _SILENT:  {_UNHEARD: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
    },
    _LM: {
        _UNHEARD: {_UNHEARD: _LM, _CLAIMS: _LM, _DENIES: _LM, _SILENT: _LM},
        _CLAIMS:  {_UNHEARD: _PA, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_UNHEARD: _LM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
        _SILENT:  {_UNHEARD: _LM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
    },
    _CO: {
        _UNHEARD: {_UNHEARD: _CO, _CLAIMS: _CO, _DENIES: _CO, _SILENT: _CO},
        _CLAIMS:  {_UNHEARD: _CO, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_UNHEARD: _CO, _CLAIMS: _PM, _DENIES: _CO, _SILENT: _CO},
        _SILENT:  {_UNHEARD: _CO, _CLAIMS: _PM, _DENIES: _CO, _SILENT: _CO},
    },
}
# fmt: on
"""For each state, and the words of the address and of the mirror, the next state."""

PRINCIPALS: Final = {
    MirroredRouteState.PRINCIPAL_IS_ADDRESS: MirrorSide.ADDRESS,
    MirroredRouteState.PRINCIPAL_IS_MIRROR: MirrorSide.MIRROR,
}
"""The states in which something is sent, and to whom."""


@dataclass(slots=True)
class _Partner:
    """One of the two addresses."""

    word: AnswerState = AnswerState.PENDING
    claim: int | None = None
    """The number of its last claim, which it has not taken back since."""
    asked_at: int | None = None
    """When it was asked what it has not answered yet."""
    heard_at: int = 0
    """When it last said something."""


class MirroredRoute:
    """Finds the principal of a mirrored route, and notices when it is another. Times are microseconds; it asks nobody by itself.

    A claim counts for what its number says (N24): one that is older than a claim of the other side, which that side has not taken
    back, is none, however long that side has been silent.

    Attributes:
        state: What is known.

    Args:
        random: Gives numbers from 0 to below 1, for the jitter of the waits.

    Examples:
        >>> mirroring = MirroredRoute(random=lambda: 0.5)
        >>> mirroring.mark_used(now=0)
        >>> [side.value for side in mirroring.sides_to_ask(now=0)]
        ['address', 'mirror']
        >>> mirroring.role_received(MirrorSide.ADDRESS, "principal", 1, now=5)
        >>> mirroring.role_received(MirrorSide.MIRROR, "mirror", 1, now=9)
        >>> mirroring.state.value, mirroring.principal.value
        ('PRINCIPAL_IS_ADDRESS', 'address')
    """

    __slots__ = ("_next_round", "_partners", "_random", "_rounds", "_used_at", "state")

    def __init__(self, *, random: Callable[[], float]) -> None:
        self.state = MirroredRouteState.UNKNOWN
        self._random: Final = random
        self._partners: Final = {side: _Partner() for side in MirrorSide}
        self._used_at: int | None = None
        self._rounds = 0
        self._next_round = 0

    @property
    def principal(self) -> MirrorSide | None:
        """To whom messages go; None: to nobody."""
        return PRINCIPALS.get(self.state)

    def mark_used(self, *, now: int) -> None:
        """Notes that messages want to go; without any, nobody is asked.

        Args:
            now: The moment.
        """
        self._used_at = now

    def sides_to_ask(self, *, now: int) -> list[MirrorSide]:
        """Who is to be asked now; whoever calls asks them, and says what comes of it.

        Args:
            now: The moment.

        Returns:
            The sides, each once until it has answered or is silent.
        """
        due = self._next_questions()
        if due is None or due > now:
            return []
        sides = [*MirrorSide] if self.principal is None else [self.principal]
        for side in sides:
            self._partners[side].asked_at = now
            self._partners[side].word = AnswerState.PENDING
        return sides

    def role_received(self, side: MirrorSide, role: MirroringRole, number: int, *, now: int) -> None:
        """One side has said what it is.

        Args:
            side: Which.
            role: What it says.
            number: The role's number.
            now: The moment.
        """
        partner = self._partners[side]
        is_claim = role == "principal"
        partner.word = AnswerState.CLAIMS if is_claim else AnswerState.DENIES
        partner.claim = number if is_claim else None
        partner.heard_at = now
        self._heard(partner, now=now)

    def mark_silent(self, side: MirrorSide, *, now: int) -> None:
        """One side cannot be reached, or its connection broke.

        Args:
            side: Which.
            now: The moment.
        """
        partner = self._partners[side]
        partner.word = AnswerState.SILENT
        self._heard(partner, now=now)

    def mark_reachable(self, side: MirrorSide, *, now: int) -> None:
        """A connection to one side stands again: as long as there is no principal, it is asked without waiting.

        Args:
            side: Which.
            now: The moment.
        """
        if self.principal is None and self._partners[side].word is AnswerState.SILENT:
            self._rounds = 0
            self._next_round = min(self._next_round, now)

    def next_timeout(self) -> int | None:
        """When there is something to do: `handle_timeout`, then `questions`; None as long as nobody wants to send.

        Returns:
            The moment.
        """
        late = [each.asked_at + ANSWER_TIMEOUT for each in self._partners.values() if each.asked_at is not None]
        asks = self._next_questions()
        return min([*late, *([] if asks is None else [asks])], default=None)

    def handle_timeout(self, *, now: int) -> None:
        """Takes those for silent who have not answered in time.

        Args:
            now: The moment.
        """
        for side, partner in self._partners.items():
            if partner.asked_at is not None and now - partner.asked_at >= ANSWER_TIMEOUT:
                self.mark_silent(side, now=now)

    def _next_questions(self) -> int | None:
        """When to ask the next time; None while an answer is waited for, or where nobody wants to send."""
        used_at, principal = self._used_at, self.principal
        if used_at is None:
            return None
        if principal is not None:
            partner = self._partners[principal]
            due = partner.heard_at + CHECK_INTERVAL
            return due if partner.asked_at is None and used_at > partner.heard_at else None
        if any(each.asked_at is not None for each in self._partners.values()):
            return None
        return self._next_round if self._next_round - used_at < ASK_AFTER_USE else None

    def _heard(self, partner: _Partner, *, now: int) -> None:
        partner.asked_at = None
        before = self.state
        words = self._words()
        self.state = TABLE[before][words[0]][words[1]]
        principal = self.principal
        if principal is not None:
            self._rounds = 0
            if self.state is not before:
                self._partners[principal.other].word = AnswerState.PENDING  # what it says from now on counts
        elif before in PRINCIPALS:
            self._next_round = now
            self._forget_questions()
        elif all(each.asked_at is None for each in self._partners.values()):
            wait = ROUND_WAITS[min(self._rounds, len(ROUND_WAITS) - 1)]
            self._next_round = now + round(wait * (1 + JITTER * (2 * self._random() - 1)))
            self._rounds += 1

    def _forget_questions(self) -> None:
        """An answer to a question from before the principal was lost comes as any other word."""
        for each in self._partners.values():
            each.asked_at = None

    def _words(self) -> tuple[AnswerState, AnswerState]:
        """What both have said, once their claims are weighed against each other."""
        address, mirror = self._partners.values()
        words = address.word, mirror.word
        if AnswerState.CLAIMS not in words or address.claim is None or mirror.claim is None:
            return words
        if address.claim == mirror.claim:
            # Who has not answered yet may take its claim back.
            both = AnswerState.PENDING if AnswerState.PENDING in words else AnswerState.CLAIMS
            return both, both
        if address.claim < mirror.claim:
            return (AnswerState.DENIES if address.word is AnswerState.CLAIMS else address.word), mirror.word
        return address.word, (AnswerState.DENIES if mirror.word is AnswerState.CLAIMS else mirror.word)
