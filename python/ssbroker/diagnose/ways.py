"""Where conversations may end, over all instances: the answers of each instance as the edges of a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from ssbroker.diagnose.behaviour import Behaviour
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.questions import Answer, Question
from ssbroker.diagnose.tables import MSDB
from ssbroker.routing import PendingRequest

Ending = Literal["DELIVERED", "DELAYED", "DROPPED", "ELSEWHERE", "LOOP"]
"""What may become of a message: in a queue; waiting at its sender; discarded on the way; sent to an address that no instance of the fleet
has; going in circles until its lifetime or its hops are used up."""


class Fate(NamedTuple):
    """One way in which it may end."""

    outcome: Ending
    instance: str | None = None
    """Where; None for a loop, which is everywhere in its circle."""
    database: str | None = None
    """Which took it, where it is delivered."""
    address: str | None = None
    """Where it went, where that is none of the fleet's."""
    reason: str | None = None
    """The decision's."""


LOOP: Final = Fate("LOOP", reason="routing_loop")


class Step(NamedTuple):
    """What one instance may do: end it, or hand it on."""

    ends: frozenset[Fate]
    nexts: tuple[tuple[str, Question], ...]
    """The instances that it may go to, and as what it arrives there."""


Node = tuple[str, Question]


class Ways:
    """All ways through a fleet.

    Args:
        fleet: The instances.
        now: The moment at which routes expire.
        pending_request: What a pending request for routing information does to step 4.
    """

    def __init__(self, fleet: Fleet, *, now: datetime, pending_request: PendingRequest = "continue") -> None:
        self.fleet: Final = fleet
        self._options: Final[dict[str, Any]] = {"now": now, "pending_request": pending_request}
        self._made: dict[str, Behaviour] = {}
        self._addresses: Final = fleet.addresses
        self._fates: dict[Node, frozenset[Fate]] = {}

    def at(self, instance: str) -> Behaviour:
        """What an instance does, made when it is first asked for."""
        if instance not in self._made:
            self._made[instance] = Behaviour(self.fleet[instance], **self._options)
        return self._made[instance]

    @property
    def behaviours(self) -> dict[str, Behaviour]:
        """What every instance does."""
        return {instance: self.at(instance) for instance in self.fleet}

    def fates(self, instance: str, question: Question) -> frozenset[Fate]:
        """Every end that a conversation may come to, whichever way ties fall."""
        return self.fates_after(instance, question, self.at(instance).ask([question])[0])

    def fates_after(self, instance: str, question: Question, answers: tuple[Answer, ...]) -> frozenset[Fate]:
        """Every end that it may come to, where the instance has these answers."""
        return self.joined(self.after(instance, question, answers))

    def joined(self, step: Step) -> frozenset[Fate]:
        """Every end that it may come to after a step."""
        if not step.nexts:
            return step.ends
        for node in step.nexts:
            if node not in self._fates:
                self._solve(node)
        return step.ends.union(*(self._fates[node] for node in step.nexts))

    def prepare(self, *, is_initiator: bool = True) -> None:
        """Asks every instance, in batches, for all that may arrive or begin there and is not like everything else."""
        ids = self._ids(is_initiator=is_initiator)
        for behaviour in self.behaviours.values():
            tables = [None] if is_initiator else [None, *behaviour.tables.databases]
            behaviour.ask(
                [
                    Question(table, name, broker, is_initiator)
                    for table in tables
                    for name in sorted(behaviour.in_play[table or MSDB])
                    for broker in ids.get(name, (None,))
                ]
            )

    def _ids(self, *, is_initiator: bool) -> dict[str, set[bytes | None]]:
        """The broker ids that come with each name: those of routes, and on the way back those of the databases that began."""
        ids: defaultdict[str, set[bytes | None]] = defaultdict(lambda: {None})
        for behaviour in self.behaviours.values():
            rows = behaviour.tables
            if is_initiator:
                for route in rows.routes:
                    if route.service is not None and route.broker is not None:
                        ids[route.service].add(route.broker)
            else:
                for service, hosts in rows.hosts.items():
                    ids[service].update(rows.databases[host].broker for host in hosts)
        return ids

    def forget(self) -> None:
        """Gives back the memory of what was found; what instances answer is kept."""
        self._fates.clear()

    def step(self, instance: str, question: Question) -> Step:
        """What the instance may do with it."""
        return self.after(instance, question, self.at(instance).ask([question])[0])

    def after(self, instance: str, question: Question, answers: tuple[Answer, ...]) -> Step:
        """What the answers of an instance lead to."""
        ends: dict[Fate, None] = {}
        nexts: dict[Node, None] = {}
        for answer in answers:
            onward = self.onward(instance, question, answer)
            if isinstance(onward, Fate):
                ends[onward] = None
            else:
                nexts[onward] = None
        return Step(frozenset(ends), tuple(nexts))

    def onward(self, instance: str, question: Question, answer: Answer) -> Fate | Node:
        """Where one answer leads: to an end, or to the next instance."""
        if answer.outcome == "LOCAL":
            return Fate("DELIVERED", instance, answer.target_database)
        if answer.next_hop is None:
            return Fate("DELAYED" if answer.outcome == "DELAYED" else "DROPPED", instance, reason=answer.reason)
        there = self._addresses.get(answer.next_hop)
        if there is None:
            return Fate("ELSEWHERE", instance, address=answer.next_hop)
        # Who begins it binds it to the route's id; who passes it on cannot change a signed header.
        broker = answer.broker if answer.outcome == "REMOTE" else question.broker
        return there, Question(None, question.service, broker, question.is_initiator)

    def reached(self, starts: Iterable[Node]) -> dict[Node, Step]:
        """Every instance that a conversation may come to from these, themselves included, and what it may do there."""
        steps: dict[Node, Step] = {}
        wave = list(dict.fromkeys(starts))
        while wave:  # each wave asks every instance once, for all that is there
            there: defaultdict[str, list[Question]] = defaultdict(list)
            for instance, question in wave:
                there[instance].append(question)
            for instance, questions in there.items():
                for question, answers in zip(questions, self.at(instance).ask(questions), strict=True):
                    steps[instance, question] = self.after(instance, question, answers)
            wave = list(dict.fromkeys(node for each in wave for node in steps[each].nexts if node not in steps))
        return steps

    def _solve(self, start: Node) -> None:
        """Ends for everything that can be reached from a node: first what surely ends, from the ends back; the rest may go in circles."""
        steps: dict[Node, Step] = {}
        waiting = [start]
        while waiting:
            node = waiting.pop()
            if node in steps or node in self._fates:
                continue
            steps[node] = self.step(*node)
            waiting += steps[node].nexts
        callers: dict[Node, list[Node]] = {node: [] for node in steps}
        left: dict[Node, int] = {}
        for node, step in steps.items():
            inner = [following for following in step.nexts if following in steps]
            left[node] = len(inner)
            for following in inner:
                callers[following].append(node)
        settled = [node for node, count in left.items() if count == 0]
        for node in settled:  # grows while it is walked
            self._fates[node] = steps[node].ends.union(*(self._fates[each] for each in steps[node].nexts))
            for caller in callers[node]:
                left[caller] -= 1
                if left[caller] == 0:
                    settled.append(caller)
        self._circle({node: steps[node] for node, count in left.items() if count > 0}, callers)

    def _circle(self, steps: dict[Node, Step], callers: dict[Node, list[Node]]) -> None:
        """Each of these can come into a circle: what one may end in, all that lead to it may."""
        loop = frozenset((LOOP,))
        for node, step in steps.items():
            outside = [self._fates[following] for following in step.nexts if following not in steps]
            self._fates[node] = loop.union(step.ends, *outside)
        waiting = list(steps)
        while waiting:
            node = waiting.pop()
            for caller in callers[node]:
                if caller in steps and not self._fates[node] <= self._fates[caller]:
                    self._fates[caller] |= self._fates[node]
                    waiting.append(caller)


def circles(steps: dict[Node, Step]) -> Iterator[list[Node]]:
    """The strongly connected parts of a graph that hold a circle, each as one circle of nodes in their order.

    Args:
        steps: The graph: a node, and what follows it.

    Yields:
        A shortest circle through the first node of each part.
    """
    for part in _components(steps):
        inside = set(part)
        first = min(part)
        came: dict[Node, Node] = {}
        waiting = [first]
        for node in waiting:  # grows while it is walked: breadth first
            for following in steps[node].nexts:
                if following == first:
                    circle = [node]
                    while circle[-1] != first:
                        circle.append(came[circle[-1]])
                    yield circle[::-1]
                    break
                if following in inside and following not in came:
                    came[following] = node
                    waiting.append(following)
            else:
                continue
            break


def _components(steps: dict[Node, Step]) -> Iterator[list[Node]]:
    """Tarjan's strongly connected parts, those with a circle only, without recursion."""
    number: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    for root, step in steps.items():
        if root in number:
            continue
        path = [(root, iter(step.nexts))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, following = path[-1]
            for each in following:
                if each not in number:
                    number[each] = low[each] = len(number)
                    stack.append(each)
                    on_stack.add(each)
                    path.append((each, iter(steps[each].nexts)))
                    break
                if each in on_stack:
                    low[node] = min(low[node], number[each])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    part = stack[stack.index(node) :]
                    del stack[-len(part) :]
                    on_stack.difference_update(part)
                    if len(part) > 1 or node in steps[node].nexts:
                        yield part
