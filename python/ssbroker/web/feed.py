"""The stream of states and events for open pages. States are created and events collected only while a page is open."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.events import (
    ActivationEvent,
    ConnectionEvent,
    ConversationMoved,
    CorruptedMessage,
    Event,
    ForwardedMessageDropped,
    JobFailed,
    MessageUndeliverable,
    MirroredRouteStateChanged,
    QueueDisabled,
    attributes,
)
from ssbroker.protocol.settings import SECOND
from ssbroker.web.observer import Observer, utc_text

EVENTS: Final = (
    ActivationEvent,
    ConnectionEvent,
    ConversationMoved,
    CorruptedMessage,
    ForwardedMessageDropped,
    JobFailed,
    MessageUndeliverable,
    MirroredRouteStateChanged,
    QueueDisabled,
)
"""The events that a page shows: the events in the log. Other events occur for each message, and subscribing to them would slow down each message."""
EVENTS_MAX: Final = 200
"""The maximum number of events that are kept; a page that reads too slowly misses the oldest events."""
PAGES_MAX: Final = 16
"""The maximum number of pages that can be open at the same time."""
_EVENT_INTERVAL: Final = 0.25
_HEARTBEAT: Final = 10.0
_TEXT_MAX: Final = 500

Subscribe = Callable[..., Callable[[], None]]

_LOGGER: Final = logging.getLogger("ssbroker.web")


class Feed:
    """Creates states and collects events while at least one page is open, and passes them to all open pages.

    Everything except `close` and the subscriber `_record` runs in the event loop of the HTTP server.

    Args:
        observer: Creates the states.
        subscribe: `Instance.subscribe`.
    """

    def __init__(self, observer: Observer, *, subscribe: Subscribe) -> None:
        self._observer: Final = observer
        self._subscribe: Final = subscribe
        self._run_id: Final = uuid.uuid4().hex
        self._pages: Final[set[asyncio.Event]] = set()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._state = ""
        self._version = 0
        self._events: deque[tuple[int, Event]] = deque(maxlen=EVENTS_MAX)
        self._number = 0
        self._guard: Final = threading.Lock()
        self._is_woken = False

    @property
    def is_full(self) -> bool:
        """Whether no more pages can be opened."""
        return len(self._pages) >= PAGES_MAX

    @property
    def is_running(self) -> bool:
        """Whether states are created, because a page is open."""
        return self._task is not None

    async def messages(self) -> AsyncIterator[str]:
        """Yields server-sent events: first `history`, then each new `state`, and `log` with the events since the previous `log`."""
        changed = asyncio.Event()
        self._pages.add(changed)
        version, number = 0, 0
        try:
            history = await run_in_threadpool(self._observer.history)  # the call waits while a state is created
            self._start()
            queues = [[*key, points] for key, points in history.items()]
            yield _message("history", {"run": self._run_id, "queues": queues})
            while not self._is_closed:
                if version != self._version:
                    version = self._version
                    yield self._state
                new = [(order, event) for order, event in list(self._events) if order > number]
                if new:
                    number = new[-1][0]
                    yield _message("log", [event_as_json(event, order) for order, event in new])
                try:
                    await asyncio.wait_for(changed.wait(), _HEARTBEAT)
                except TimeoutError:
                    yield ": still here\n\n"  # so that a closed connection is noticed
                changed.clear()
        finally:
            self._close_page(changed)

    def close(self) -> None:
        """Ends all streams; called by another thread."""
        self._is_closed = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and so have the streams
                self._loop.call_soon_threadsafe(self._wake)

    def _start(self) -> None:
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._unsubscribe = self._subscribe(self._record, *EVENTS)
            self._task = self._loop.create_task(self._run())

    def _close_page(self, changed: asyncio.Event) -> None:
        self._pages.discard(changed)
        if not self._pages and self._task is not None:
            self._task.cancel()
            self._task = None
            self._unsubscribe()
            self._observer.pause()

    async def _run(self) -> None:
        while True:
            try:
                state = await run_in_threadpool(self._observer.state)
                self._state = _message("state", state)
            except (SsbrokerError, OSError, RuntimeError) as error:
                _LOGGER.warning("the status page cannot read the state of the instance; trying again: %s", error)
                self._state = _message("failure", str(error))
            self._version += 1
            self._wake()
            await asyncio.sleep(max(0.01, self._observer.seconds_until_due()))

    def _record(self, event: Event) -> None:
        """Keeps an event; called in the thread that causes the event, which must not wait."""
        with self._guard:
            self._number += 1
            self._events.append((self._number, event))
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._loop.call_later, _EVENT_INTERVAL, self._wake)

    def _wake(self) -> None:
        self._is_woken = False
        for changed in self._pages:
            changed.set()


def event_as_json(event: Event, number: int) -> dict[str, Any]:
    """Returns an event as JSON: its number, time, level, name and database, and its other attributes as text.

    Examples:
        >>> event_as_json(QueueDisabled(at=0, database="Sales", queue="dbo.Orders"), 1)["text"]
        'queue: dbo.Orders'
    """
    parts = [
        name.replace("_", " ") + ("" if value is True else f": {_text(value)}")
        for name, value in attributes(event).items()
        if name != "database" and value not in (None, "", 0)
    ]
    return {
        "number": number,
        "at": utc_text(event.at / SECOND),
        "level": logging.getLevelName(event.level).lower(),
        "name": event.NAME.removeprefix("Broker:"),
        "database": event.database,
        "text": ", ".join(parts),
    }


def _text(value: Any) -> str:
    text = (
        value.value
        if isinstance(value, Enum)
        else value.decode(errors="replace")
        if isinstance(value, bytes)
        else value
    )
    return str(text)[:_TEXT_MAX]


def _message(name: str, content: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n"
