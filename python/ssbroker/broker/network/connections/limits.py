"""How long the endpoint waits, and for how much (N10 to N12)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from ssbroker import options
from ssbroker.protocol.adjacent.limits import Limits
from ssbroker.protocol.retry import JITTER, SECOND

_HOUR = 3600 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """How long the endpoint waits, and for how much; times are microseconds.

    Attributes:
        link: The same of one connection, once TLS is agreed.
        login_wait: How long TCP, TLS and HELLO may take together.
        unproven_bytes: What is taken of a far side before it has proven who it is.
        unproven_most: How many such connections there may be; the oldest goes for a new one. A quarter of the files that the process
            may open is never exceeded, so that databases and honest instances have theirs.
        principal_most: How many connections that one principal has dialled there may be, whatever instances it says they come from; the oldest
            goes for a new one. A quarter of the files is not exceeded here either.
        dials_at_once: How many connections one address may dial in one go (N33); an IPv6 network of 64 bits counts as one address.
        dials_per_second: How many more it may dial in each second from then on.
        learnt_most: How many addresses that no route names may be in use at once (N34), as far as others have chosen them.
        learnt_dials: How many of these are dialled at once; the others wait.
        outbox_bytes: What may wait to go to one address.
        dial_wait: How long to wait after a dial that failed; twice as long after the next, and so on.
        dial_wait_most: The longest of these waits.
        steady_after: How long a connection over which no rows have come has to last so that its end counts as a first failure.

    Raises:
        OptionError: One of them is not what it can be.

    Examples:
        >>> limits = EndpointLimits()
        >>> [limits.wait(failures, roll=0.5) // SECOND for failures in range(1, 9)]
        [1, 2, 4, 8, 16, 32, 60, 60]
        >>> limits.wait(1, roll=0.0) / SECOND
        0.875
    """

    link: Limits = field(default_factory=Limits)
    login_wait: int = 10 * SECOND
    unproven_bytes: int = 16 << 10
    unproven_most: int = 1000
    principal_most: int = 256
    dials_at_once: int = 200
    dials_per_second: int = 20
    learnt_most: int = 1000
    learnt_dials: int = 64
    outbox_bytes: int = 2 << 20
    dial_wait: int = SECOND
    dial_wait_most: int = 60 * SECOND
    steady_after: int = 10 * SECOND

    def __post_init__(self) -> None:
        for name in ("login_wait", "dial_wait", "dial_wait_most"):
            options.whole(getattr(self, name), name=name, least=1, most=_HOUR)
        options.whole(self.steady_after, name="steady_after", least=0, most=_HOUR)
        options.whole(self.unproven_bytes, name="unproven_bytes", least=4 << 10, most=1 << 20)
        for name in (
            "unproven_most",
            "principal_most",
            "dials_at_once",
            "dials_per_second",
            "learnt_most",
            "learnt_dials",
        ):
            options.whole(getattr(self, name), name=name, least=1, most=1_000_000)
        options.whole(self.outbox_bytes, name="outbox_bytes", least=1, most=1 << 40)

    def wait(self, failures: int, *, roll: float) -> int:
        """How long to wait before an address is dialled again.

        Args:
            failures: How often it has failed in a row, at least once.
            roll: A random number from 0 to below 1, for the jitter.

        Returns:
            Microseconds.

        Examples:
            >>> EndpointLimits().wait(20, roll=0.5) // SECOND
            60
        """
        base = min(self.dial_wait << min(failures - 1, 32), self.dial_wait_most)
        return round(base * (1 + JITTER * (2 * roll - 1)))

    def principal_allowed(self) -> int:
        """How many connections one principal may have dialled in this process, at least one.

        Examples:
            >>> EndpointLimits(principal_most=1).principal_allowed()
            1
        """
        return _within_files(self.principal_most)

    def unproven_allowed(self) -> int:
        """How many connections that are not proven there may be in this process, at least one.

        Examples:
            >>> EndpointLimits(unproven_most=1).unproven_allowed()
            1
        """
        return _within_files(self.unproven_most)


def _within_files(most: int) -> int:
    """So many connections, or as many as a quarter of the files is, but one in any case."""
    return max(min(most, _files_allowed() // 4), 1)


def _files_allowed() -> int:
    """How many files the process may have open."""
    if sys.platform == "win32":
        return 2**31 - 1
    import resource  # noqa: PLC0415 - Windows has none

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if allowed == resource.RLIM_INFINITY else allowed
