"""Dialogs between two instances over a virtual network: everything that happens follows from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ssbroker import options
from ssbroker.exceptions import OptionError
from ssbroker.protocol import names
from ssbroker.protocol.dialogs import Dialogs
from ssbroker.protocol.ledger import Endpoint, Key
from ssbroker.protocol.retry import SECOND
from ssbroker.protocol.settings import Settings
from ssbroker.testing.faults import Faults
from ssbroker.testing.figures import Figures, Sent
from ssbroker.testing.network import TICK, Network
from ssbroker.testing.node import Books, Machine, Node, memory_of

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
class Plan:
    """What one side of a dialog sends.

    Attributes:
        node: The instance.
        key: The endpoint.
        bursts: Moments, and how many messages are sent at each.
        sent: What was sent.
    """

    node: Node
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
        settings: Settings | None = None,
        faulty_seconds: float = 45,
        sending_seconds: float | None = None,
        machine: Machine = Dialogs,
        books: Books = memory_of,
    ) -> None:
        options.whole(dialogs, name="dialogs", least=1, most=_DIALOGS_MAX)
        options.whole(messages, name="messages", least=1, most=_MESSAGES_MAX)
        options.number(faulty_seconds, name="faulty_seconds", least=0, most=_SECONDS_MAX)
        if sending_seconds is not None:
            options.number(sending_seconds, name="sending_seconds", least=0, most=faulty_seconds)
        for name, given, kind in (("faults", faults, Faults), ("settings", settings, Settings)):
            if given is not None and not isinstance(given, kind):
                raise OptionError(f"{name}: expected {kind.__name__}(...); got {given!r:.80}")
        self.seed = seed
        self.faults = Faults.drawn(seed) if faults is None else faults
        self._random = random = Random(f"simulation {seed}")  # noqa: S311 - chance that can be repeated
        self.settings = _settings(random) if settings is None else settings
        self._nodes = {name: Node(name, self.settings, random, machine=machine, books=books) for name in ("A", "B")}
        self._network = Network(self.faults, random)
        self._faulty_until = round(faulty_seconds * SECOND)
        sending = faulty_seconds * 2 / 3 if sending_seconds is None else sending_seconds
        self._sending_until = round(sending * SECOND)
        self._session_keys: dict[bytes, bytes] = {}
        self._plans = [plan for number in range(dialogs) for plan in self._dialog(number, messages)]
        self._now = 0

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.faults}; {self.settings}"

    def run(self) -> Figures:
        """Runs it to its end.

        Returns:
            What was counted.
        """
        figures = Figures()
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

    def _dialog(self, number: int, messages: int) -> Iterator[Plan]:
        random = self._random
        initiator, target = random.sample(sorted(self._nodes.values(), key=lambda node: node.name), 2)
        conversation = random.randbytes(12) + number.to_bytes(4)
        if random.random() < 0.5:  # noqa: PLR2004 - half of them
            self._session_keys[conversation] = random.randbytes(32)
        endpoint = Endpoint(
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
            yield Plan(node, key, self._bursts(messages))

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

    def _send(self, plan: Plan) -> None:
        """Sends what is due; a target can when the dialog has reached it."""
        random = self._random
        while plan.bursts and plan.bursts[-1][0] <= self._now and plan.node.ledger.can_send(plan.key):
            _, number = plan.bursts.pop()
            for place in range(number):
                is_last = not plan.bursts and place == number - 1
                kind = names.END_DIALOG if is_last else random.choice(["Order", "Offer"])
                size = random.choice([0, 5, 20, 90, 90, 250, 500, 16 * _FRAGMENT_BYTES - 20])
                body = b"" if is_last else f"{len(plan.sent)} of {plan.key[1]}:".encode() + random.randbytes(size)
                plan.node.ledger.send(plan.key, body, message_type=kind)
                plan.sent.append((kind, body))
            plan.node.dialogs.queued([plan.key])

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

    def _count(self, figures: Figures) -> None:
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


def _settings(random: Random) -> Settings:
    return Settings(
        max_fragment_bytes=_FRAGMENT_BYTES,
        window_fragments=random.choice([8, 64, 1024]),
        turn_fragments=random.choice([4, 64, 64]),
        integrity=random.choice(["strict", "strict", "strict", "compat"]),
        honor_priority=random.random() < 0.5,  # noqa: PLR2004 - half of them
    )
