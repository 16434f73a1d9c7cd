"""A signal handler may close a server during a call that holds locks; threads that wait for these end afterwards."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.open_databases import Databases
from tests.broker.network.served_pair import ServedPair


def test_a_handler_closes_a_server_while_its_exchange_waits_for_the_interrupted_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        pair = ServedPair(tmp_path, stack)
        server, databases = pair.servers[0], pair.shop._context.databases_list
        is_in_turn, interrupted_thread = threading.Event(), threading.get_ident()
        refresh = Databases._refresh

        def turn() -> None:
            is_acquired = server.exchange._guard.acquire(timeout=1.0)  # else the exchange's own turn waits for the call
            is_in_turn.set()
            if is_acquired:
                databases.all()  # waits for the interrupted call
                server.exchange._guard.release()

        in_turn = threading.Thread(target=turn, daemon=True)

        def interrupted(self: Databases) -> dict[str, DatabaseContext]:
            """Does what a handler would, with the lock of the databases held."""
            if self is not databases or threading.get_ident() != interrupted_thread:
                return refresh(self)
            monkeypatch.undo()
            in_turn.start()
            assert is_in_turn.wait(60.0)
            server.close()
            return refresh(self)

        monkeypatch.setattr(Databases, "_refresh", interrupted)
        assert "Sales" in databases.all()
        in_turn.join(60.0)
        assert not in_turn.is_alive()
        assert not server.is_alive
