"""A model of the conversations in one database: slow and simple Python, without SQL or a table of states."""

from __future__ import annotations

from dataclasses import dataclass, field

MESSAGE = "message"
END = "EndDialog"
ERROR = "Error"


class RefusedError(Exception):
    """The call is rejected with this number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class Item:
    """A message in transit or in a queue."""

    number: int
    kind: str
    body: bytes = b""
    order: int = 0


@dataclass
class Side:
    """One endpoint of a conversation."""

    conversation: int
    is_initiator: bool
    queue: str
    group: int
    priority: int
    state: str = "SO"
    sent: int = 0
    pending: list[Item] = field(default_factory=list)
    inbox: list[Item] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, bool]:
        return self.conversation, self.is_initiator


class Model:
    """A database with services on queues; `retaining` of them keep messages. Every conversation is with `target`."""

    def __init__(self, *, queues: dict[str, str], priorities: dict[str, int], target: str, retaining: set[str]) -> None:
        self.queues = queues
        self.priorities = priorities
        self.target = target
        self.retaining = retaining
        self.off: set[str] = set()
        self.sides: dict[tuple[int, bool], Side] = {}
        self.conversations = 0
        self.groups = 0
        self.order = 0

    def side(self, key: tuple[int, bool]) -> Side:
        if key not in self.sides:
            raise RefusedError(8426)
        return self.sides[key]

    def begin(self, service: str, related: tuple[int, bool] | None) -> tuple[int, bool]:
        queue = self.queues[service]
        group = None
        if related is not None:
            other = self.side(related)
            if not other.is_initiator or other.queue != queue:
                raise RefusedError(9610)
            group = other.group
        self.conversations += 1
        side = Side(
            self.conversations, True, queue, self._new_group() if group is None else group, self.priorities[service]
        )
        self.sides[side.key] = side
        return side.key

    def send(self, key: tuple[int, bool], bodies: list[bytes]) -> None:
        side = self.side(key)
        if side.state not in ("SO", "CO"):
            raise RefusedError(8429)
        if side.queue in self.off and side.queue in self.retaining:
            raise RefusedError(9618)
        side.state = "CO"
        self._transmit(side, [Item(side.sent + place, MESSAGE, body) for place, body in enumerate(bodies)])

    def end(self, key: tuple[int, bool], *, error: bool) -> None:
        side = self.side(key)
        if side.state in ("DO", "CD"):
            raise RefusedError(8427)
        side.inbox = []
        if side.state != "CO":
            self._close(side)
            return
        side.state = "DO"
        if error:
            side.pending = []
        self._transmit(side, [Item(side.sent, ERROR if error else END)])

    def clean_up(self, key: tuple[int, bool]) -> None:
        del self.sides[self.side(key).key]

    def move(self, key: tuple[int, bool], other: tuple[int, bool]) -> None:
        side, to = self.side(key), self.side(other)
        if side.state in ("DO", "CD"):
            raise RefusedError(8438)
        if not any(one.group == to.group and one.state != "CD" for one in self.sides.values()):
            raise RefusedError(8426)
        if side.queue != to.queue:
            raise RefusedError(9610)
        side.group = to.group

    def receive(self, queue: str, top: int | None) -> list[tuple[tuple[int, bool], Item]]:
        if queue in self.off:
            raise RefusedError(9617)
        here = [one for one in self.sides.values() if one.queue == queue and one.inbox]
        if not here:
            return []
        by_turn = sorted(here, key=lambda one: (-one.priority, min(item.order for item in one.inbox)))
        found: list[tuple[tuple[int, bool], Item]] = []
        for one in by_turn:
            if one.group != by_turn[0].group:
                continue
            one.inbox.sort(key=lambda item: (item.kind != ERROR, item.number))
            taken = one.inbox if top is None else one.inbox[: top - len(found)]
            one.inbox = one.inbox[len(taken) :]
            found += [(one.key, item) for item in taken]
        return found

    def switch(self, queue: str) -> None:
        """Turns a queue on or off; messages that arrived while it was off enter it now."""
        self.off ^= {queue}
        if queue in self.off:
            return
        for side in self.sides.values():
            if side.queue == queue and any(not item.order for item in side.inbox):
                late = [item for item in side.inbox if not item.order]
                side.inbox = [item for item in side.inbox if item.order]
                for item in late:
                    self._enqueue(side, item)

    def deliver_all(self) -> None:
        """Tries to deliver all waiting messages."""
        for key in list(self.sides):
            self._deliver_pending(key)

    def _deliver_pending(self, key: tuple[int, bool]) -> None:
        side = self.sides.get(key)
        if side is not None and side.pending:
            side.pending = self._deliver(side, side.pending)

    def _transmit(self, side: Side, items: list[Item]) -> None:
        side.sent += len(items)
        if side.pending:
            side.pending += items
        else:
            side.pending = self._deliver(side, items)

    def _deliver(self, side: Side, items: list[Item]) -> list[Item]:
        """Returns the undelivered messages."""
        far = self.sides.get((side.conversation, not side.is_initiator))
        if far is None and not side.is_initiator:
            if any(item.kind == MESSAGE for item in items):
                self._break(side)
            else:
                self._close(side)
            return []
        if far is None and items[0].kind == ERROR:
            self._close(side)
            return []
        if (self.queues[self.target] if far is None else far.queue) in self.off:
            return items
        if far is None:
            far = Side(
                side.conversation, False, self.queues[self.target], self._new_group(), self.priorities["far"], "CO"
            )
            self.sides[far.key] = far
        for item in items:
            self._take(far, item)
        if items[-1].kind != MESSAGE:
            self._close(side)
        return []

    def _take(self, far: Side, item: Item) -> None:
        if item.kind == ERROR and far.state == "DO":
            self._close(far)
        if far.state != "CO":
            return
        self._enqueue(far, item)
        if item.kind == END:
            far.state = "DI"
        if item.kind == ERROR:
            far.state, far.pending = "ER", []

    def _break(self, side: Side) -> None:
        """The remote endpoint does not exist any more."""
        if side.state == "DO":
            self._close(side)
        if side.state == "CO":
            side.state = "ER"
            self._enqueue(side, Item(0, ERROR))

    def _enqueue(self, side: Side, item: Item) -> None:
        """A message for a disabled queue has no position in the order yet."""
        self.order += side.queue not in self.off
        side.inbox.append(Item(item.number, item.kind, item.body, self.order if side.queue not in self.off else 0))

    def _close(self, side: Side) -> None:
        side.inbox, side.pending = [], []
        if side.is_initiator:
            del self.sides[side.key]
        else:
            side.state = "CD"

    def _new_group(self) -> int:
        self.groups += 1
        return self.groups
