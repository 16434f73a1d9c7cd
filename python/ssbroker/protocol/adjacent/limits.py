"""How long a link waits, and for how much."""

from __future__ import annotations

from dataclasses import dataclass

from ssbroker import options
from ssbroker.protocol.retry import SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a link waits, in microseconds, and for how much; what is not given is as the decisions have it.

    Attributes:
        hello_bytes: The longest body of a frame until the far side has said HELLO (N4).
        hello_wait: How long HELLO may take, from when the link is made (N11).
        ping_after: How long nothing may come, while something is unanswered, before PING (N10).
        silence: How long nothing may come, while something is unanswered, before the far side counts as gone (N10).
        sign_every: How often a side that does not read gives a sign of its own accord (N12).
        idle: How long a connection may carry nothing before it is closed (P2).
        goodbye_wait: How long nothing may come or go between GOODBYE and the end; twelve times that is the end in any case.

    Raises:
        OptionError: One of them is not what it can be.

    Examples:
        >>> Limits(idle=0)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: idle: expected a whole number from 1 to 9223372036854775807; got 0
    """

    hello_bytes: int = 4 << 10
    hello_wait: int = 10 * SECOND
    ping_after: int = 10 * SECOND
    silence: int = 20 * SECOND
    sign_every: int = 5 * SECOND
    idle: int = 30 * SECOND
    goodbye_wait: int = 5 * SECOND

    def __post_init__(self) -> None:
        for name in self.__slots__:
            options.whole(getattr(self, name), name=name, least=1, most=2**63 - 1)
        options.whole(self.silence, name="silence", least=self.ping_after + 1, most=2**63 - 1)
