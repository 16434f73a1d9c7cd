"""Answers to who asks what databases of mirrored pairs are here: to many questions after one look (N23)."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Final

from ssbroker.broker.network.connections.connection import Connection
from ssbroker.broker.network.connections.setup import Setup

LOOK_WAIT: Final = 0.01
"""The seconds that lie between two looks, unless many ask."""
MANY: Final = 512
"""So many questions do not wait: a connection on which twice as many do is ended."""


class RoleAnswers:
    """Answers questions, in the endpoint's thread.

    An answer is never older than its question, so there has to be a look at the files for each; and neighbours ask as fast as they like.
    So what is asked soon after a look is answered after the next one, all of it together.

    Args:
        setup: What the parts of an endpoint share.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup: Final = setup
        self._asked: list[tuple[Connection, bytes]] = []
        self._due: asyncio.TimerHandle | None = None
        self._looked_at = -math.inf

    def asked(self, connection: Connection, broker_instance: bytes) -> None:
        """The far side of a connection asks.

        Args:
            connection: The connection.
            broker_instance: The broker id of the database.
        """
        self._asked.append((connection, broker_instance))
        if len(self._asked) >= MANY:
            self._look()
        elif self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_at(max(loop.time(), self._looked_at + LOOK_WAIT), self._look)

    def _look(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        asked, self._asked = self._asked, []
        self._setup.call(partial(self._answer, asked))
        self._looked_at = asyncio.get_running_loop().time()

    def _answer(self, asked: list[tuple[Connection, bytes]]) -> None:
        roles = self._setup.receiver.roles_of([broker_instance for _, broker_instance in asked])
        for (connection, broker_instance), (role, number) in zip(asked, roles, strict=True):
            connection.line.tell_role(broker_instance, role, number)
        for connection in dict(asked):
            connection.pump()
