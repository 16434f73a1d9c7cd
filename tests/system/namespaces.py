"""One network namespace for each process, if the system allows it, connected by kernel links instead of the loopback
interface.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.system.proxy import HOST

_NETWORKS: Final = ("198.18", "198.19")
"""Reserved by RFC 2544 for tests of networks."""
_COUNTER: Final = itertools.count(1)
_WORD: Final = "ssb"


@dataclass(frozen=True, slots=True)
class Location:
    """Where a process runs.

    Attributes:
        host: The host on which it listens.
        gateway: The host on which others listen for its connections.
        command: Prefix of its command.
    """

    host: str = HOST
    gateway: str = HOST
    command: tuple[str, ...] = ()


LOOPBACK: Final = Location()
"""The machine's own loopback interface."""


class Namespaces:
    """A namespace for each name, linked to this one; removed at the end of the block.

    Args:
        names: The names.
        netem: What the kernel does to packets that leave a namespace, in the syntax of `tc qdisc add ... netem`;
            nothing by default.

    Raises:
        OSError: On entering the block, if this machine does not allow namespaces.
    """

    def __init__(self, names: Sequence[str], *, netem: str = "") -> None:
        self._names: Final = names
        self._netem: Final = netem
        self.locations: Final[dict[str, Location]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as undone:
            undone.callback(self._remove)
            for name in self._names:
                self._make(name)
            undone.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for place in self.locations.values():
            _run("ip", "netns", "del", place.command[-1])

    def _make(self, name: str) -> None:
        number = next(_COUNTER)
        high, low = divmod(os.getpid(), 256)
        outer, inner = (f"{_NETWORKS[high % 2]}.{low}.{4 * (number % 64) + end}" for end in (1, 2))
        space, link = f"{_WORD}-{os.getpid()}-{number}", f"{_WORD}{os.getpid() % 100_000}n{number}"
        _run("ip", "netns", "add", space)
        self.locations[name] = Location(inner, outer, ("ip", "netns", "exec", space))
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "addr", "add", f"{outer}/30", "dev", link)
        _run("ip", "link", "set", link, "up")
        for words in (f"addr add {inner}/30 dev eth0", "link set eth0 up", "link set lo up"):
            _run("ip", "-n", space, *words.split())
        if self._netem:
            _run(
                "ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "eth0", "root", "netem", *self._netem.split()
            )


def _run(*command: str) -> None:
    if not shutil.which(command[0]):
        raise OSError(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
