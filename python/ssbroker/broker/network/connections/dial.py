"""One dial: the name is looked up, and the first of its addresses that answers and may be dialled is taken."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from ssbroker.broker import forks
from ssbroker.broker.network.connections.hosts import ip_of
from ssbroker.broker.network.connections.reach import Reach

_NEXT_ADDRESS_AFTER: Final = 2.0
"""The seconds after which another address of a name is tried."""
_LOOKUPS_MOST: Final = 256
_LOOKUPS: Final = threading.BoundedSemaphore(_LOOKUPS_MOST)
"""A name server that does not answer holds each look-up for half a minute or so; in this process there are no more than these."""

_Found: TypeAlias = list[Any]
"""As `socket.getaddrinfo` has it."""


class _Socket(socket.socket):
    """One that a forked process lets go of."""

    def descriptors(self) -> Iterable[int]:
        """See `forks.Holder`."""
        return (self.fileno(),)


async def connected(host: str, port: int, reach: Reach) -> socket.socket:
    """Dials. Whoever cancels this leaves no socket open, which asyncio's own way does not promise.

    Args:
        host: A name or an address, in lower case.
        port: The port.
        reach: What may be dialled.

    Returns:
        A socket that is connected.

    Raises:
        OSError: Nobody answers, the name is not known, or nothing that it leads to may be dialled.
    """
    if reach.refuses(host):
        raise PermissionError(_refused(host))
    found: _Found = _numeric(host, port) or await _looked_up(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    if not reach.has_name(host):
        found = [each for each in found if reach.has_ip(str(each[4][0]))]
        if not found:
            raise PermissionError(_refused(host))
    return await _first(found)


def _refused(host: str) -> str:
    return f"{host} is not among what may be dialled (dial_only)"


def _numeric(host: str, port: int) -> _Found:
    """What is an address has not to be looked up; of a name, nothing."""
    if ip_of(host) is None:
        return []
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)


async def _looked_up(look: Callable[[], _Found]) -> _Found:
    """Looks a name up in a thread that nobody has to wait for: neither other names, nor the end of the process."""
    if not _LOOKUPS.acquire(blocking=False):
        raise OSError("too many names are being looked up")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Found] = loop.create_future()

    def tell(found: _Found | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found or [])

    def work() -> None:
        found: _Found | None = None
        failed: Exception | None = None
        try:
            found = look()
        except (OSError, ValueError) as error:
            failed = error
        finally:
            _LOOKUPS.release()
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(tell, found, failed)
            except RuntimeError:  # it was closed in this moment
                return

    threading.Thread(target=work, name="ssbroker name look-up", daemon=True).start()
    return await answer


async def _first(found: _Found) -> socket.socket:
    loop = asyncio.get_running_loop()
    for left, (family, kind, protocol, _, address) in zip(reversed(range(len(found))), found, strict=True):
        opened = _Socket(family, kind, protocol)
        forks.lets_go(opened)
        try:
            opened.setblocking(False)
            async with asyncio.timeout(_NEXT_ADDRESS_AFTER if left else None):
                await loop.sock_connect(opened, address)
        except OSError:
            opened.close()
            if not left:
                raise
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    raise OSError("the name has no address")
