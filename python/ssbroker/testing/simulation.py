"""Simulates dialogs between two instances over a virtual network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa

from ssbroker._arguments import real_number, whole_number
from ssbroker.exceptions import OptionError, ProtocolError
from ssbroker.protocol import message_types
from ssbroker.protocol.config import SECOND, ProtocolSettings
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.events import EventLog
from ssbroker.protocol.storage import DialogEndpoint, Key
from ssbroker.testing.memory_storage import MemoryDialogStorage, SimulatedInstanceStorage, StoredMessage
from ssbroker.testing.network import TICK, Faults, Network

Machine: TypeAlias = Callable[..., DialogEngine]
Books: TypeAlias = Callable[[str], SimulatedInstanceStorage]


def memory_of(name: str) -> MemoryDialogStorage:
    """A ledger in memory for the instance of a name, of which its broker id is made.

    Args:
        name: The name.

    Returns:
        The ledger.

    Examples:
        >>> memory_of("A").broker_instance
        b'A---------------'
    """
    return MemoryDialogStorage(name.encode().ljust(16, b"-"))


class SimulatedInstance:
    """An instance: what is committed stands in its ledger, all else is lost when it crashes.

    Args:
        name: Its name on the network.
        settings: How the protocol is set up.
        random: Where chance comes from.
        machine: What makes its machine; `Dialogs` unless a test plants a bug.
        books: What keeps what is durable, by the name; in memory unless told otherwise.

    Examples:
        >>> node = SimulatedInstance("A", ProtocolSettings(), Random(7))
        >>> node.data_to_send(now=0) is None
        True
    """

    def __init__(
        self,
        name: str,
        settings: ProtocolSettings,
        random: Random,
        *,
        machine: Machine = DialogEngine,
        books: Books = memory_of,
    ) -> None:
        self.name = name
        self.ledger = books(name)
        self.log = EventLog()
        self.clock_offset = 0
        self.crashes = 0
        self.rollbacks = 0
        self._settings = settings
        self._random = random
        self._machine = machine
        self._outbox: list[pa.Table] = []
        self.dialogs = self._started()

    def _started(self) -> DialogEngine:
        self.ledger.restart()
        made = self._machine(self.ledger, random=self._random.random, settings=self._settings, log=self.log)
        made.notify_queued(self.ledger.waiting())
        return made

    def crash(self) -> None:
        """Loses all that is not committed, and starts anew."""
        self.crashes += 1
        self.dialogs = self._started()

    def data_to_send(self, *, now: int) -> pa.Table | None:
        """What it sends now.

        Args:
            now: The moment of the network; its own clock may show another.

        Returns:
            The rows; None for nothing.
        """
        self._collect(now)
        tables, self._outbox = self._outbox, []
        return pa.concat_tables(tables) if tables else None

    def _collect(self, now: int) -> None:
        while (table := self.dialogs.data_to_send(now=now + self.clock_offset)) is not None:
            self._outbox.append(table)

    def next_timeout(self) -> int | None:
        """When it has something to send again, by the network's clock."""
        due = self.dialogs.next_timeout()
        return None if due is None else due - self.clock_offset if due else 0

    def receive(
        self,
        table: pa.Table,
        *,
        now: int,
        peer: bytes | None,
        session_keys: Mapping[bytes, bytes],
        crashes: float = 0.0,
        rollbacks: float = 0.0,
    ) -> None:
        """Takes a batch and commits what it comes to, unless something goes wrong.

        Args:
            table: The rows.
            now: The moment.
            peer: Who handed it over.
            session_keys: Keys of conversations that begin with it.
            crashes: How likely a crash is, just before or just after the commit.
            rollbacks: How likely the transaction is rolled back.
        """
        moment = now + self.clock_offset
        chance = self._random.random()
        options: dict[str, Any] = {"peer": peer, "session_keys": session_keys}
        effects = self.dialogs.receive(table, now=moment, **options)
        # What it sends while the transaction runs is out, whatever becomes of that.
        self._collect(now)
        if chance < crashes / 2:
            self.crash()
            return
        if chance > 1 - rollbacks:
            self.rollbacks += 1
            self.dialogs.undo(effects)
            return
        if self.ledger.commit(effects) is not None:
            raise ProtocolError(f"{self.name}: the ledger did not take what is its own")
        if chance < crashes:
            self.crash()
            return
        self.dialogs.confirm(effects, now=moment)


Sent: TypeAlias = tuple[str, bytes]
"""The type and the body of a message."""


@dataclass(slots=True)
class SimulationResult:
    """What was counted.

    Attributes:
        messages: Messages that applications sent.
        lost: Of those, how many never came out.
        twice: How many came out more than once.
        out_of_order: How many came out before or after their turn.
        altered: How many came out that nobody sent so.
        fragments: Fragments, acknowledgements and errors that were sent.
        fragments_lost: How many the network lost.
        fragments_duplicated: How many it delivered twice.
        fragments_delayed: How many it held up.
        fragments_corrupted: Of how many it flipped a bit.
        rejected: How many the instances refused as damaged or misled.
        crashes: How often an instance crashed.
        rollbacks: How often a transaction was rolled back.
        seconds: How many virtual seconds it took.
        drained: After how many virtual seconds without faults all had arrived; None where it never had.
        undrained: How many simulations did not drain in time.
    """

    messages: int = 0
    lost: int = 0
    twice: int = 0
    out_of_order: int = 0
    altered: int = 0
    fragments: int = 0
    fragments_lost: int = 0
    fragments_duplicated: int = 0
    fragments_delayed: int = 0
    fragments_corrupted: int = 0
    rejected: int = 0
    crashes: int = 0
    rollbacks: int = 0
    seconds: float = 0.0
    drained: float = 0.0
    undrained: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost, twice, out of order or altered, and all arrived in time."""
        return not (self.lost or self.twice or self.out_of_order or self.altered or self.undrained or self.problems)

    def compare(self, sent: Sequence[Sent], received: Sequence[StoredMessage], *, what: str) -> None:
        """Compares what one side sent with what the other received.

        Args:
            sent: The messages as they were sent, each different from the others.
            received: The messages as they came out.
            what: What it is about, for the report.

        Examples:
            >>> figures = SimulationResult()
            >>> figures.compare([("DEFAULT", b"a"), ("DEFAULT", b"b")], [StoredMessage(1, b"b")], what="A to B")
            >>> figures.lost, figures.out_of_order
            (1, 1)
        """
        places = {message: place for place, message in enumerate(sent)}
        seen: set[int] = set()
        counts = (self.lost, self.twice, self.out_of_order, self.altered)
        for message in received:
            place = places.get((message.message_type, message.body))
            if place is None:
                self.altered += 1
            elif place in seen:
                self.twice += 1
            else:
                self.out_of_order += place != len(seen)
                seen.add(place)
        self.messages += len(sent)
        self.lost += len(sent) - len(seen)
        if counts != (self.lost, self.twice, self.out_of_order, self.altered):
            self.problems.append(f"{what}: {len(sent)} sent, {len(received)} came out")

    def add(self, other: Self) -> None:
        """Adds what another simulation counted.

        Args:
            other: Its figures.

        Examples:
            >>> total = SimulationResult(messages=1, drained=3.0)
            >>> total.add(SimulationResult(messages=2, drained=1.0))
            >>> total.messages, total.drained
            (3, 3.0)
        """
        for each in fields(self):
            if each.name == "problems":
                self.problems += other.problems
            elif each.name == "drained":
                self.drained = max(self.drained, other.drained)
            else:
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages: {self.lost} lost, {self.twice} twice, {self.out_of_order} out of order, {self.altered} altered; "
            f"{self.fragments:,} fragments sent: {self.fragments_lost:,} lost, {self.fragments_duplicated:,} duplicated, "
            f"{self.fragments_delayed:,} held up, {self.fragments_corrupted:,} damaged, {self.rejected:,} rejected; "
            f"{self.crashes:,} crashes, {self.rollbacks:,} rollbacks; "
            f"drained within {self.drained:.0f} virtual seconds after the faults ({self.undrained} not in time)"
        )


IN_TIME: Final = 240
"""Within how many virtual seconds after the faults everything has to have arrived: four minutes."""
_REJECTIONS: Final = ("Broker:Corrupted Message", "Broker:Message Undeliverable")
_HOUR: Final = 3600 * SECOND
_MINUTE: Final = 60 * SECOND
_FRAGMENT_BYTES: Final = 128
_DIALOGS_MAX: Final = 1_000_000
_MESSAGES_MAX: Final = 1_000_000
_SECONDS_MAX: Final = 30 * 86_400
_YEAR_2026: Final = 1_767_225_600 * SECOND


@dataclass(slots=True)
class SendPlan:
    """What one side of a dialog sends.

    Attributes:
        node: The instance.
        key: The endpoint.
        bursts: Moments, and how many messages are sent at each.
        sent: What was sent.
    """

    node: SimulatedInstance
    key: Key
    bursts: list[tuple[int, int]]
    sent: list[Sent] = field(default_factory=list)


class Simulation:
    """A number of dialogs between two instances, both of which begin some, under faults and then without.

    Args:
        seed: What everything follows from.
        dialogs: How many dialogs.
        messages: How many messages each side of a dialog sends; the last ends the dialog.
        faults: What goes wrong; drawn from the seed unless given.
        settings: How the protocol is set up; drawn from the seed unless given.
        faulty_seconds: For how long there are faults.
        sending_seconds: For how long applications send; two thirds of that unless given.
        machine: What makes the machines; `Dialogs` unless a test plants a bug.
        books: What keeps what is durable of each instance, by its name; in memory unless told otherwise.

    Raises:
        OptionError: There is nothing to send, it takes longer than the faults, or one of the arguments is not what it can be.

    Examples:
        >>> figures = Simulation(7, dialogs=2, messages=5).run()
        >>> figures.is_right, figures.messages
        (True, 20)
    """

    def __init__(
        self,
        seed: int,
        *,
        dialogs: int = 6,
        messages: int = 12,
        faults: Faults | None = None,
        settings: ProtocolSettings | None = None,
        faulty_seconds: float = 45,
        sending_seconds: float | None = None,
        machine: Machine = DialogEngine,
        books: Books = memory_of,
    ) -> None:
        whole_number(dialogs, name="dialogs", minimum=1, maximum=_DIALOGS_MAX)
        whole_number(messages, name="messages", minimum=1, maximum=_MESSAGES_MAX)
        real_number(faulty_seconds, name="faulty_seconds", minimum=0, maximum=_SECONDS_MAX)
        if sending_seconds is not None:
            real_number(sending_seconds, name="sending_seconds", minimum=0, maximum=faulty_seconds)
        for name, given, kind in (("faults", faults, Faults), ("settings", settings, ProtocolSettings)):
            if given is not None and not isinstance(given, kind):
                raise OptionError(f"{name}: expected {kind.__name__}(...); got {given!r:.80}")
        self.seed = seed
        self.faults = Faults.drawn(seed) if faults is None else faults
        self._random = random = Random(f"simulation {seed}")  # noqa: S311 - chance that can be repeated
        self.settings = _settings(random) if settings is None else settings
        self._nodes = {
            name: SimulatedInstance(name, self.settings, random, machine=machine, books=books) for name in ("A", "B")
        }
        self._network = Network(self.faults, random)
        self._faulty_until = round(faulty_seconds * SECOND)
        sending = faulty_seconds * 2 / 3 if sending_seconds is None else sending_seconds
        self._sending_until = round(sending * SECOND)
        self._session_keys: dict[bytes, bytes] = {}
        self._plans = [plan for number in range(dialogs) for plan in self._dialog(number, messages)]
        self._now = 0

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.faults}; {self.settings}"

    def run(self) -> SimulationResult:
        """Runs it to its end.

        Returns:
            What was counted.
        """
        figures = SimulationResult()
        while not self._is_done():
            if self._now > self._faulty_until + IN_TIME * SECOND:
                figures.undrained = 1
                figures.problems.append(f"{self}: not drained")
                break
            if self._network.faults is not self.faults or self._now < self._faulty_until:
                self._go_wrong()
            else:
                self._mend()
            self._step()
        self._count(figures)
        return figures

    def _dialog(self, number: int, messages: int) -> Iterator[SendPlan]:
        random = self._random
        initiator, target = random.sample(sorted(self._nodes.values(), key=lambda node: node.name), 2)
        conversation = random.randbytes(12) + number.to_bytes(4)
        if random.random() < 0.5:  # noqa: PLR2004 - half of them
            self._session_keys[conversation] = random.randbytes(32)
        endpoint = DialogEndpoint(
            conversation_id=conversation,
            is_initiator=True,
            service_name=f"Service of {initiator.name}",
            broker_instance=initiator.ledger.broker_instance,
            far_service_name=f"Service of {target.name}",
            far_broker_instance=random.choice([None, target.ledger.broker_instance]),
            service_contract_name="Trade",
            priority=random.randint(1, 10),
            lifetime=random.choice([None, _YEAR_2026]),
            session_key=self._session_keys.get(conversation),
        )
        initiator.ledger.begin(endpoint)
        for node, key in ((initiator, endpoint.key), (target, (conversation, False))):
            yield SendPlan(node, key, self._bursts(messages))

    def _bursts(self, messages: int) -> list[tuple[int, int]]:
        left, bursts = messages, []
        while left:
            number = min(left, self._random.choice([1, 1, 2, 5, 20, messages]))
            bursts.append((self._random.randrange(self._sending_until + 1) // TICK * TICK, number))
            left -= number
        return sorted(bursts, reverse=True)

    def _is_done(self) -> bool:
        return not any(plan.bursts or plan.node.ledger.is_waiting(plan.key) for plan in self._plans)

    def _step(self) -> None:
        now, network = self._now, self._network
        for source, target, table in network.arriving(now=now):
            faulty = network.faults
            self._nodes[target].receive(
                table,
                now=now,
                peer=b"certificate of " + source.encode(),
                session_keys=self._session_keys,
                crashes=faulty.crashes,
                rollbacks=faulty.rollbacks,
            )
        for plan in self._plans:
            self._send(plan)
        for name, node in self._nodes.items():
            node.dialogs.flush(now=now + node.clock_offset)
            sent = node.data_to_send(now=now)
            if sent is not None:
                network.send(sent, source=name, target="AB".replace(name, ""), now=now)
        moments = [plan.bursts[-1][0] for plan in self._plans if plan.bursts]
        moments += [due for node in self._nodes.values() if (due := node.next_timeout()) is not None]
        if network.next_arrival is not None:
            moments.append(network.next_arrival)
        if now < self._faulty_until and (self.faults.partitions or self.faults.clock_jumps):
            moments.append(now + SECOND)
        self._now = max(now + TICK, -(-min(moments, default=0) // TICK) * TICK)

    def _send(self, plan: SendPlan) -> None:
        """Sends what is due; a target can when the dialog has reached it."""
        random = self._random
        while plan.bursts and plan.bursts[-1][0] <= self._now and plan.node.ledger.can_send(plan.key):
            _, number = plan.bursts.pop()
            for place in range(number):
                is_last = not plan.bursts and place == number - 1
                kind = message_types.END_DIALOG if is_last else random.choice(["Order", "Offer"])
                size = random.choice([0, 5, 20, 90, 90, 250, 500, 16 * _FRAGMENT_BYTES - 20])
                body = b"" if is_last else f"{len(plan.sent)} of {plan.key[1]}:".encode() + random.randbytes(size)
                plan.node.ledger.send(plan.key, body, message_type=kind)
                plan.sent.append((kind, body))
            plan.node.dialogs.notify_queued([plan.key])

    def _go_wrong(self) -> None:
        """Partitions and clock jumps, as often as the menu says."""
        random, faults, now = self._random, self._network.faults, self._now
        ticks = _MINUTE / TICK
        if random.random() < faults.partitions / ticks * 5:
            until = now + round(random.uniform(1, faults.partition_seconds) * SECOND)
            source, target = random.sample(["A", "B"], 2)
            self._network.cut_off(source, target, until=until)
            if random.random() >= faults.one_way:
                self._network.cut_off(target, source, until=until)
        if random.random() < faults.clock_jumps / ticks * 5:
            random.choice([*self._nodes.values()]).clock_offset += random.randrange(-_HOUR, _HOUR)

    def _mend(self) -> None:
        """Ends all faults."""
        self._network.faults = Faults()
        for source, target in (("A", "B"), ("B", "A")):
            self._network.cut_off(source, target, until=0)

    def _count(self, figures: SimulationResult) -> None:
        for plan in self._plans:
            far = next(node for node in self._nodes.values() if node is not plan.node)
            key = (plan.key[0], not plan.key[1])
            what = f"{self}: {plan.key[0].hex()} from {plan.node.name}"
            figures.compare(plan.sent, far.ledger.received(key), what=what)
            error = far.ledger.failed(key)
            if error is not None:
                figures.problems.append(f"{what}: {error}")
        carried = self._network.carried
        figures.fragments = carried.sent
        figures.fragments_lost = carried.lost
        figures.fragments_duplicated = carried.duplicated
        figures.fragments_delayed = carried.delayed
        figures.fragments_corrupted = carried.corrupted
        nodes = self._nodes.values()
        figures.rejected = sum(node.log.counts[name] for node in nodes for name in _REJECTIONS)
        figures.crashes = sum(node.crashes for node in nodes)
        figures.rollbacks = sum(node.rollbacks for node in nodes)
        figures.seconds = self._now / SECOND
        figures.drained = max(0.0, (self._now - self._faulty_until) / SECOND)


def _settings(random: Random) -> ProtocolSettings:
    return ProtocolSettings(
        max_fragment_bytes=_FRAGMENT_BYTES,
        window_fragments=random.choice([8, 64, 1024]),
        turn_fragments=random.choice([4, 64, 64]),
        integrity=random.choice(["strict", "strict", "strict", "compat"]),
        honor_priority=random.random() < 0.5,  # noqa: PLR2004 - half of them
    )
