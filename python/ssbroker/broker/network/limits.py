"""Time and size limits of the network endpoint."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from ssbroker._arguments import integer_argument
from ssbroker.protocol.retry_waits import JITTER
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.wire.link import LinkLimits

_HOUR = 3600 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """Time and size limits of the network endpoint. All times are in microseconds.

    Attributes:
        link: The time and size limits of one connection.
        login_timeout: Maximum time for TCP, TLS and HELLO together.
        max_unauthenticated_bytes: Maximum bytes that are read from a peer before it is authenticated.
        max_unauthenticated: Maximum number of unauthenticated connections; a new connection replaces the oldest. The
            number never exceeds a quarter of the process's open-file limit (`RLIMIT_NOFILE`), so that the rest is available
            for databases and authenticated peers.
        max_connections_per_principal: Maximum number of connections that one principal may have dialled, counting all
            instance ids that it states; a new connection replaces the oldest. The number never exceeds a quarter
            of the open-file limit either.
        dial_burst: Number of connections that one address may dial in a burst; an IPv6 /64 network counts as one address.
        dials_per_second: Number of connections that one address may dial per second after the burst.
        max_unrouted_addresses: Maximum number of addresses in use that peers have chosen and no route names.
        max_unrouted_dials: Maximum number of addresses named by no route that are dialled at the same time; further ones wait.
        outbox_bytes: Maximum bytes that wait to be sent to one address.
        dial_wait: Wait after a failed dial; it doubles after each further failure.
        max_dial_wait: Maximum wait after a failed dial.
        stable_after: Minimum duration after which a connection without received rows counts as stable: when a stable
            connection ends, the waits between dials start again at `dial_wait`.

    Raises:
        OptionError: A value is out of range.

    Examples:
        >>> from ssbroker import EndpointLimits
        >>> limits = EndpointLimits()
        >>> [limits.dial_backoff(failures, jitter=0.5) // 1_000_000 for failures in range(1, 9)]
        [1, 2, 4, 8, 16, 32, 60, 60]
        >>> limits.dial_backoff(1, jitter=0.0) / 1_000_000
        0.875
    """

    link: LinkLimits = field(default_factory=LinkLimits)
    login_timeout: int = 10 * SECOND
    max_unauthenticated_bytes: int = 16 << 10
    max_unauthenticated: int = 1000
    max_connections_per_principal: int = 256
    dial_burst: int = 200
    dials_per_second: int = 20
    max_unrouted_addresses: int = 1000
    max_unrouted_dials: int = 64
    outbox_bytes: int = 2 << 20
    dial_wait: int = SECOND
    max_dial_wait: int = 60 * SECOND
    stable_after: int = 10 * SECOND

    def __post_init__(self) -> None:
        integer_argument(self.login_timeout, name="login_timeout, in microseconds", minimum=1_000, maximum=_HOUR)
        for name in ("dial_wait", "max_dial_wait"):
            integer_argument(getattr(self, name), name=f"{name}, in microseconds", minimum=1, maximum=_HOUR)
        integer_argument(self.stable_after, name="stable_after", minimum=0, maximum=_HOUR)
        integer_argument(
            self.max_unauthenticated_bytes, name="max_unauthenticated_bytes", minimum=4 << 10, maximum=1 << 20
        )
        for name in (
            "max_unauthenticated",
            "max_connections_per_principal",
            "dial_burst",
            "dials_per_second",
            "max_unrouted_addresses",
            "max_unrouted_dials",
        ):
            integer_argument(getattr(self, name), name=name, minimum=1, maximum=1_000_000)
        integer_argument(self.outbox_bytes, name="outbox_bytes", minimum=1, maximum=1 << 40)

    def dial_backoff(self, failures: int, *, jitter: float) -> int:
        """Returns the wait before an address is dialled again, in microseconds.

        Args:
            failures: The number of failures in a row, at least 1.
            jitter: A random number in [0, 1).

        Returns:
            The wait in microseconds, with jitter.

        Examples:
            >>> from ssbroker import EndpointLimits
            >>> EndpointLimits().dial_backoff(20, jitter=0.5) // 1_000_000
            60
        """
        base = min(self.dial_wait << min(failures - 1, 32), self.max_dial_wait)
        return round(base * (1 + JITTER * (2 * jitter - 1)))

    def connections_per_principal_limit(self) -> int:
        """Returns how many connections one principal may have dialled in this process; at least 1.

        Returns:
            `max_connections_per_principal`, or a quarter of the process's open-file limit (`RLIMIT_NOFILE`), whichever is less.

        Examples:
            >>> from ssbroker import EndpointLimits
            >>> EndpointLimits(max_connections_per_principal=1).connections_per_principal_limit()
            1
        """
        return limit_by_open_files(self.max_connections_per_principal)

    def unauthenticated_limit(self) -> int:
        """Returns how many unauthenticated connections this process may have; at least 1.

        Returns:
            `max_unauthenticated`, or a quarter of the process's open-file limit (`RLIMIT_NOFILE`), whichever is less.

        Examples:
            >>> from ssbroker import EndpointLimits
            >>> EndpointLimits(max_unauthenticated=1).unauthenticated_limit()
            1
        """
        return limit_by_open_files(self.max_unauthenticated)


def limit_by_open_files(limit: int) -> int:
    """Returns a limit of connections, or a quarter of the process's open-file limit (`RLIMIT_NOFILE`) if this is less; at least 1."""
    return max(min(limit, _open_files_max() // 4), 1)


def _open_files_max() -> int:
    if sys.platform == "win32":
        return 2**31 - 1
    import resource  # noqa: PLC0415 - not available on Windows

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if allowed == resource.RLIM_INFINITY else allowed
