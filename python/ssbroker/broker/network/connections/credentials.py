"""The certificates and keys of now: read again when their files change or somebody asks, without a restart (N36)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias

from ssbroker.broker.network.connections.trust import Contexts, Trust
from ssbroker.exceptions import InputError, OptionError

LOGGER: Final = logging.getLogger("ssbroker.broker")
_Marks: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class Credentials:
    """What new connections agree on TLS with. Those that are there go on with what they began with.

    Args:
        trust: Where the files are.

    Attributes:
        contexts: What was read last; replaced as a whole.

    Raises:
        InputError: A file cannot be read, or is not what it should be.
        OptionError: They do not fit each other.
    """

    def __init__(self, trust: Trust) -> None:
        self._files: Final = [trust.certificate, trust.key, *chain.from_iterable(trust.pinned.values())]
        if trust.authority is not None:
            self._files.append(trust.authority)
        self._trust: Final = trust
        self._read: _Marks = self._marks()
        self._seen: _Marks = self._read
        self._failed: tuple[_Marks, str] | None = None
        self._told: str | None = None
        self.contexts: Contexts = Contexts.of(trust)
        self._tell()

    def reload(self) -> None:
        """Reads the files again, now. Where one of them is broken, what was read before goes on to be used.

        Raises:
            InputError: A file cannot be read, or is not what it should be.
            OptionError: They do not fit each other.
        """
        self._seen = self._marks()
        try:
            self.contexts = Contexts.of(self._trust)
        except (InputError, OptionError) as error:
            self._failed = self._seen, str(error)
            raise
        self._read, self._failed = self._seen, None
        self._tell()

    def trouble(self) -> str | None:
        """Why every other instance refuses the certificate of this one now; None where its dates are no reason to."""
        now, contexts = datetime.now(UTC), self.contexts
        if contexts.begins <= now <= contexts.ends:
            return None
        what, when = ("begins", contexts.begins) if now < contexts.begins else ("ended", contexts.ends)
        return f"{self._trust.certificate}: this certificate {what} at {when:%Y-%m-%d %H:%M:%S} UTC; other instances refuse it"

    def look(self) -> None:
        """Reads the files again where they have changed since, and have not for one look, so that nobody is still writing them.

        What is wrong with them is logged once for each change, and they are read again at each look until nothing is: what was in the
        way may not be in them, such as the rights of a file. That the own certificate has ended is logged once.
        """
        self._tell()
        seen, self._seen = self._seen, self._marks()
        if self._seen == self._read or self._seen != seen:
            return
        failed = self._failed
        try:
            self.reload()
        except (InputError, OptionError) as error:
            if self._failed != failed:
                LOGGER.warning(
                    "the certificates have changed, and cannot be used: %s; those from before go on to be used", error
                )
        else:
            LOGGER.info("the certificates have changed, and were read again: new connections use them")

    def _tell(self) -> None:
        told, self._told = self._told, self.trouble()
        if self._told is not None and self._told != told:
            LOGGER.warning("%s", self._told)

    def _marks(self) -> _Marks:
        return tuple(_mark(file) for file in self._files)


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        said = file.stat()
    except OSError:
        return None
    return said.st_mtime_ns, said.st_size, said.st_ino
