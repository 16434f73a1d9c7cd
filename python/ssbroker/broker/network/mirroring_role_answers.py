"""Answers the role queries of peers."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Final

from ssbroker.broker.network.connection import PeerConnection, call_listener
from ssbroker.broker.network.endpoint_context import EndpointContext

ANSWER_INTERVAL: Final = 0.01
"""Minimum seconds between two answers, unless many queries wait."""
QUERIES_MAX: Final = 512
"""The number of waiting queries from which on they are answered immediately; a connection with twice as many is closed."""


class RoleAnswers:
    """Answers role queries of peers, in the endpoint's thread.

    An answer must not be older than its query, so each requires the files to be read, and peers query as fast as they like. Queries soon
    after an answer therefore wait, and are answered together.
    """

    def __init__(self, context: EndpointContext) -> None:
        self._context: Final = context
        self._queries: list[tuple[PeerConnection, bytes]] = []
        self._due: asyncio.TimerHandle | None = None
        self._answered_at = -math.inf

    def query_received(self, connection: PeerConnection, broker_instance: bytes) -> None:
        """Handles the role query of a peer."""
        self._queries.append((connection, broker_instance))
        if len(self._queries) >= QUERIES_MAX:
            self._answer_all()
        elif self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_at(max(loop.time(), self._answered_at + ANSWER_INTERVAL), self._answer_all)

    def _answer_all(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        queries, self._queries = self._queries, []
        call_listener(partial(self._answer, queries))
        self._answered_at = asyncio.get_running_loop().time()

    def _answer(self, queries: list[tuple[PeerConnection, bytes]]) -> None:
        roles = self._context.listener.mirroring_roles([broker_instance for _, broker_instance in queries])
        for (connection, broker_instance), (role, number) in zip(queries, roles, strict=True):
            with connection.guard:
                connection.link.reply_role(broker_instance, role, number)
        for connection in dict(queries):
            connection.pump()
