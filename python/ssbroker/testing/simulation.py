"""Simulates dialogs between two instances over a virtual network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa

from ssbroker import _well_known
from ssbroker._arguments import integer_argument, real_number
from ssbroker.exceptions import OptionError, ProtocolError
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.events import EventLog
from ssbroker.protocol.settings import SECOND, ProtocolSettings
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey
from ssbroker.testing.memory_storage import MemoryDialogStorage, SimulatedInstanceStorage, StoredMessage
from ssbroker.testing.network import TICK, Faults, Network

EngineFactory: TypeAlias = Callable[..., DialogEngine]
StorageFactory: TypeAlias = Callable[[str], SimulatedInstanceStorage]


def memory_storage(name: str) -> MemoryDialogStorage:
    """Returns empty in-memory storage, with a broker id derived from the name of the instance."""
    return MemoryDialogStorage(name.encode().ljust(16, b"-"))


class SimulatedInstance:
    """An instance whose storage survives a crash; a crash loses everything else.

    Args:
        name: The name on the network.
        settings: The protocol settings.
        random: The random number generator.
        engine: Creates the protocol engine; a test can pass a faulty engine.
        storage: Creates the storage from the name; by default, in memory.

    Examples:
        >>> from random import Random
        >>> from ssbroker import ProtocolSettings
        >>> from ssbroker.testing import SimulatedInstance
        >>> instance = SimulatedInstance("A", ProtocolSettings(), Random(7))
        >>> instance.data_to_send(now=0) is None
        True
    """

    def __init__(
        self,
        name: str,
        settings: ProtocolSettings,
        random: Random,
        *,
        engine: EngineFactory = DialogEngine,
        storage: StorageFactory = memory_storage,
    ) -> None:
        self.name = name
        self.storage = storage(name)
        self.log = EventLog()
        self.clock_offset = 0
        self.crashes = 0
        self.rollbacks = 0
        self._settings = settings
        self._random = random
        self._engine = engine
        self._outbox: list[pa.Table] = []
        self.dialogs = self._start_engine()

    def _start_engine(self) -> DialogEngine:
        self.storage.restart()
        made = self._engine(self.storage, random=self._random.random, settings=self._settings, log=self.log)
        made.notify_queued(self.storage.waiting())
        return made

    def crash(self) -> None:
        """Discards all uncommitted state and restarts."""
        self.crashes += 1
        self.dialogs = self._start_engine()

    def data_to_send(self, *, now: int) -> pa.Table | None:
        """Returns the rows that the instance sends now.

        Args:
            now: The time of the network, in microseconds; the clock of the instance may differ.

        Returns:
            The rows, as `protocol.envelope.ENVELOPE`; None if there is nothing to send.
        """
        self._collect(now)
        tables, self._outbox = self._outbox, []
        return pa.concat_tables(tables) if tables else None

    def _collect(self, now: int) -> None:
        while (table := self.dialogs.data_to_send(now=now + self.clock_offset)) is not None:
            self._outbox.append(table)

    def next_timeout(self) -> int | None:
        """Returns the next time at which the instance has something to send, in the time of the network: 0 for immediately, None for never."""
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
        """Receives a batch and commits its changes, unless a fault is injected.

        Args:
            table: The rows.
            now: The time of the network, in microseconds.
            peer: The peer that delivered the batch.
            session_keys: Keys of conversations that the batch starts.
            crashes: The probability of a crash, just before or just after the commit.
            rollbacks: The probability that the transaction is rolled back.
        """
        local_now = now + self.clock_offset
        chance = self._random.random()
        options: dict[str, Any] = {"peer": peer, "session_keys": session_keys}
        effects = self.dialogs.receive(table, now=local_now, **options)
        # Rows that are sent while the transaction runs stay sent, even if it is rolled back.
        self._collect(now)
        if chance < crashes / 2:
            self.crash()
            return
        if chance > 1 - rollbacks:
            self.rollbacks += 1
            self.dialogs.undo(effects)
            return
        if self.storage.commit(effects) is not None:
            raise ProtocolError(f"{self.name}: the storage rejected the changes of its own engine")
        if chance < crashes:
            self.crash()
            return
        self.dialogs.confirm(effects, now=local_now)


Sent: TypeAlias = tuple[str, bytes]
"""The type and the body of a message."""


@dataclass(slots=True)
class SimulationResult:
    """The result of one or more simulations.

    Attributes:
        messages: The number of messages that applications sent.
        lost: The number of these messages that never arrived.
        duplicated: The number of messages that arrived more than once.
        out_of_order: The number of messages that arrived before an earlier message or after a later message.
        altered: The number of arrived messages that were not sent in this form.
        fragments: The number of fragments, acknowledgements and errors sent.
        fragments_lost: The number of fragments that the network lost.
        fragments_duplicated: The number of fragments that the network delivered twice.
        fragments_delayed: The number of fragments that the network delayed.
        fragments_corrupted: The number of fragments in which the network flipped a bit.
        rejected: The number of fragments that the instances rejected as damaged or misdirected.
        crashes: The number of crashes.
        rollbacks: The number of rolled-back transactions.
        seconds: The virtual duration, in seconds.
        drained: The number of virtual seconds from the end of the faults until everything had arrived, or until the simulation gave up; for
            several simulations, the maximum.
        undrained: The number of simulations that did not deliver everything in time.
    """

    messages: int = 0
    lost: int = 0
    duplicated: int = 0
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
    def is_correct(self) -> bool:
        """Whether no message was lost, duplicated, out of order or altered, no endpoint failed, and all messages arrived in time."""
        return not (
            self.lost or self.duplicated or self.out_of_order or self.altered or self.undrained or self.problems
        )

    def compare(self, sent: Sequence[Sent], received: Sequence[StoredMessage], *, what: str) -> None:
        """Compares the messages that one endpoint sent with those that the other endpoint received, and adds the differences.

        Args:
            sent: The messages as sent, all of them different.
            received: The messages as received.
            what: A description of the direction, for the report.

        Examples:
            >>> from ssbroker.testing import SimulationResult, StoredMessage
            >>> result = SimulationResult()
            >>> result.compare([("DEFAULT", b"a"), ("DEFAULT", b"b")], [StoredMessage(1, b"b")], what="A to B")
            >>> result.lost, result.out_of_order
            (1, 1)
        """
        places = {message: place for place, message in enumerate(sent)}
        seen: set[int] = set()
        counts = (self.lost, self.duplicated, self.out_of_order, self.altered)
        for message in received:
            place = places.get((message.message_type, message.body))
            if place is None:
                self.altered += 1
            elif place in seen:
                self.duplicated += 1
            else:
                self.out_of_order += place != len(seen)
                seen.add(place)
        self.messages += len(sent)
        self.lost += len(sent) - len(seen)
        if counts != (self.lost, self.duplicated, self.out_of_order, self.altered):
            self.problems.append(f"{what}: {len(sent)} sent, {len(received)} received")

    def add(self, other: Self) -> None:
        """Adds the result of another simulation.

        Args:
            other: The other result.

        Examples:
            >>> from ssbroker.testing import SimulationResult
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
            f"{self.messages:,} messages: {self.lost} lost, {self.duplicated} duplicated, {self.out_of_order} out of order, {self.altered} altered; "
            f"{self.fragments:,} fragments sent: {self.fragments_lost:,} lost, {self.fragments_duplicated:,} duplicated, "
            f"{self.fragments_delayed:,} delayed, {self.fragments_corrupted:,} corrupted, {self.rejected:,} rejected; "
            f"{self.crashes:,} crashes, {self.rollbacks:,} rollbacks; "
            f"drained within {self.drained:.0f} virtual seconds after the faults ({self.undrained} too late)"
        )


DRAIN_SECONDS_MAX: Final = 240
"""Everything must arrive within this many virtual seconds after the end of the faults."""
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
    """The messages that one endpoint of a dialog sends.

    Attributes:
        node: The instance.
        key: The endpoint.
        bursts: The send times, and the number of messages sent at each time.
        sent: The messages that were sent.
    """

    node: SimulatedInstance
    key: EndpointKey
    bursts: list[tuple[int, int]]
    sent: list[Sent] = field(default_factory=list)


class Simulation:
    """Dialogs between two instances, first with faults and then without. Each instance starts some of the dialogs.

    Args:
        seed: The seed that determines the simulation.
        dialogs: The number of dialogs.
        messages: How many messages each endpoint of a dialog sends; the last message ends the dialog.
        faults: The faults; by default, drawn from the seed.
        settings: The protocol settings; by default, drawn from the seed.
        faulty_seconds: How long faults occur, in virtual seconds.
        sending_seconds: How long applications send, in virtual seconds; by default, two thirds of `faulty_seconds`.
        engine: Creates the protocol engines; a test can pass a faulty engine.
        storage: Creates the storage of an instance from its name; by default, in memory.

    Raises:
        OptionError: There is nothing to send, sending takes longer than the faults, or another argument is invalid.

    Examples:
        >>> from ssbroker.testing import Simulation
        >>> result = Simulation(7, dialogs=2, messages=5).run()
        >>> result.is_correct, result.messages
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
        engine: EngineFactory = DialogEngine,
        storage: StorageFactory = memory_storage,
    ) -> None:
        integer_argument(dialogs, name="dialogs", minimum=1, maximum=_DIALOGS_MAX)
        integer_argument(messages, name="messages", minimum=1, maximum=_MESSAGES_MAX)
        real_number(faulty_seconds, name="faulty_seconds", minimum=0, maximum=_SECONDS_MAX)
        if sending_seconds is not None:
            real_number(sending_seconds, name="sending_seconds", minimum=0, maximum=faulty_seconds)
        for name, given, kind in (("faults", faults, Faults), ("settings", settings, ProtocolSettings)):
            if given is not None and not isinstance(given, kind):
                raise OptionError(f"{name}: expected {kind.__name__}(...), got {given!r:.80}")
        self.seed = seed
        self.faults = Faults.from_seed(seed) if faults is None else faults
        self._random = random = Random(f"simulation {seed}")  # noqa: S311 - the results must be reproducible
        self.settings = _random_settings(random) if settings is None else settings
        self._nodes = {
            name: SimulatedInstance(name, self.settings, random, engine=engine, storage=storage) for name in ("A", "B")
        }
        self._network = Network(self.faults, random)
        self._faulty_until = round(faulty_seconds * SECOND)
        sending = faulty_seconds * 2 / 3 if sending_seconds is None else sending_seconds
        self._sending_until = round(sending * SECOND)
        self._session_keys: dict[bytes, bytes] = {}
        self._plans = [plan for number in range(dialogs) for plan in self._plan_dialog(number, messages)]
        self._now = 0

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.faults}; {self.settings}"

    def run(self) -> SimulationResult:
        """Runs the simulation to its end.

        Returns:
            The result.
        """
        result = SimulationResult()
        while not self._has_drained():
            if self._now > self._faulty_until + DRAIN_SECONDS_MAX * SECOND:
                result.undrained = 1
                result.problems.append(f"{self}: not all messages arrived in time")
                break
            if self._network.faults is not self.faults or self._now < self._faulty_until:
                self._inject_faults()
            else:
                self._end_faults()
            self._step()
        self._count(result)
        return result

    def _plan_dialog(self, number: int, messages: int) -> Iterator[SendPlan]:
        random = self._random
        initiator, target = random.sample(sorted(self._nodes.values(), key=lambda node: node.name), 2)
        conversation = random.randbytes(12) + number.to_bytes(4)
        if random.random() < 0.5:  # noqa: PLR2004 - a probability
            self._session_keys[conversation] = random.randbytes(32)
        endpoint = DialogEndpoint(
            conversation_id=conversation,
            is_initiator=True,
            service_name=f"Service of {initiator.name}",
            broker_instance=initiator.storage.broker_instance,
            far_service_name=f"Service of {target.name}",
            far_broker_instance=random.choice([None, target.storage.broker_instance]),
            service_contract_name="Trade",
            priority=random.randint(1, 10),
            lifetime=random.choice([None, _YEAR_2026]),
            session_key=self._session_keys.get(conversation),
        )
        initiator.storage.begin(endpoint)
        for node, key in ((initiator, endpoint.key), (target, (conversation, False))):
            yield SendPlan(node, key, self._bursts(messages))

    def _bursts(self, messages: int) -> list[tuple[int, int]]:
        left, bursts = messages, []
        while left:
            number = min(left, self._random.choice([1, 1, 2, 5, 20, messages]))
            bursts.append((self._random.randrange(self._sending_until + 1) // TICK * TICK, number))
            left -= number
        return sorted(bursts, reverse=True)

    def _has_drained(self) -> bool:
        return not any(plan.bursts or plan.node.storage.is_waiting(plan.key) for plan in self._plans)

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
            self._send_due(plan)
        for name, node in self._nodes.items():
            node.dialogs.flush(now=now + node.clock_offset)
            sent = node.data_to_send(now=now)
            if sent is not None:
                network.send(sent, source=name, target="AB".replace(name, ""), now=now)
        due_times = [plan.bursts[-1][0] for plan in self._plans if plan.bursts]
        due_times += [due for node in self._nodes.values() if (due := node.next_timeout()) is not None]
        if network.next_arrival is not None:
            due_times.append(network.next_arrival)
        if now < self._faulty_until and (self.faults.partitions or self.faults.clock_jumps):
            due_times.append(now + SECOND)
        self._now = max(now + TICK, -(-min(due_times, default=0) // TICK) * TICK)

    def _send_due(self, plan: SendPlan) -> None:
        """Sends the messages that are due; a target can send once the dialog has reached it."""
        random = self._random
        while plan.bursts and plan.bursts[-1][0] <= self._now and plan.node.storage.can_send(plan.key):
            _, number = plan.bursts.pop()
            for place in range(number):
                is_last = not plan.bursts and place == number - 1
                message_type = _well_known.END_DIALOG if is_last else random.choice(["Order", "Offer"])
                size = random.choice([0, 5, 20, 90, 90, 250, 500, 16 * _FRAGMENT_BYTES - 20])
                body = b"" if is_last else f"{len(plan.sent)} of {plan.key[1]}:".encode() + random.randbytes(size)
                plan.node.storage.send(plan.key, body, message_type=message_type)
                plan.sent.append((message_type, body))
            plan.node.dialogs.notify_queued([plan.key])

    def _inject_faults(self) -> None:
        """Injects partitions and clock jumps at their frequencies."""
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

    def _end_faults(self) -> None:
        """Ends all faults."""
        self._network.faults = Faults()
        for source, target in (("A", "B"), ("B", "A")):
            self._network.cut_off(source, target, until=0)

    def _count(self, result: SimulationResult) -> None:
        for plan in self._plans:
            receiver = next(node for node in self._nodes.values() if node is not plan.node)
            key = (plan.key[0], not plan.key[1])
            what = f"{self}: {plan.key[0].hex()} from {plan.node.name}"
            result.compare(plan.sent, receiver.storage.received(key), what=what)
            error = receiver.storage.failed(key)
            if error is not None:
                result.problems.append(f"{what}: {error}")
        counts = self._network.carried
        result.fragments = counts.sent
        result.fragments_lost = counts.lost
        result.fragments_duplicated = counts.duplicated
        result.fragments_delayed = counts.delayed
        result.fragments_corrupted = counts.corrupted
        nodes = self._nodes.values()
        result.rejected = sum(node.log.counts[name] for node in nodes for name in _REJECTIONS)
        result.crashes = sum(node.crashes for node in nodes)
        result.rollbacks = sum(node.rollbacks for node in nodes)
        result.seconds = self._now / SECOND
        result.drained = max(0.0, (self._now - self._faulty_until) / SECOND)


def _random_settings(random: Random) -> ProtocolSettings:
    return ProtocolSettings(
        max_fragment_bytes=_FRAGMENT_BYTES,
        window_fragments=random.choice([8, 64, 1024]),
        fragments_per_turn=random.choice([4, 64, 64]),
        integrity=random.choice(["strict", "strict", "strict", "compat"]),
        honor_priority=random.random() < 0.5,  # noqa: PLR2004 - a probability
    )
