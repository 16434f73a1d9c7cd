"""A storm: three processes exchange messages over a network with faults, and each is killed repeatedly.

`python -m tests.system.storm --messages 200000 --large 20` prints what it counted; exit status 0 where every message arrived exactly once, in
order, unaltered.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from argparse import ArgumentParser, BooleanOptionalAction
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.system.checker import Verdict
from tests.system.faults import Menu
from tests.system.fleet import FORWARD_MEGABYTES, GATE, ROLES, SHOP, STOCK, Fleet
from tests.system.namespaces import Namespaces, Place
from tests.system.node import ROWS_KIB
from tests.system.serve_options import options
from tests.system.traffic import Plan

MIB: Final = 1 << 20
FORWARDER_ROWS_MIB_MAX: Final = FORWARD_MEGABYTES + 8 + 4 * 2
"""The memory limit of a forwarder's rows: forwarded rows, its inbox, an outbox for each of four addresses."""
FORWARDER_MIB_MAX: Final = FORWARDER_ROWS_MIB_MAX + 128
"""What its process may take beside what it begins with: with code that is used first then, TLS, and what allocators keep. 66 to 113 were seen."""
_QUIET_SECONDS: Final = 300.0


@dataclass(slots=True)
class Outcome:
    """The counts of a storm.

    Attributes:
        verdict: What arrived.
        is_done: Whether all arrived, was answered, ended and acknowledged in time.
        seconds: How long it took.
        kills: How often each was killed.
        network: What the proxies did.
        forwarder_mib: What the forwarder took beside what it began with; -1 where the system does not tell.
        forwarder_rows_mib: The most that rows took in it.
        statuses: With what the processes ended when they were asked.
        complaints: What they wrote on standard error.
    """

    plan: Plan
    verdict: Verdict = field(default_factory=Verdict)
    is_done: bool = False
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    network: Counter[str] = field(default_factory=Counter)
    forwarder_mib: float = -1.0
    forwarder_rows_mib: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    complaints: str = ""

    @property
    def is_correct(self) -> bool:
        """Whether everything is correct."""
        return (
            self.verdict.is_correct
            and self.is_done
            and not any(self.statuses.values())
            and self.forwarder_mib <= FORWARDER_MIB_MAX
            and self.forwarder_rows_mib <= FORWARDER_ROWS_MIB_MAX
        )

    def __str__(self) -> str:
        carried = self.plan.messages * self.plan.small_bytes + self.plan.large * self.plan.large_bytes
        kills = ", ".join(f"{name} {self.kills[name]}" for name in (SHOP, GATE, STOCK))
        emitted = [
            f"{self.verdict}",
            f"{self.seconds:.0f} s, {self.plan.total / self.seconds:,.0f} messages/s, {carried / MIB / self.seconds:.1f} MiB/s",
            f"killed: {kills}",
            (
                f"the network: {self.network['connections']} connections, {self.network['cut']} cut, {self.network['flips']} bits flipped, "
                f"{self.network['delays']} times held up, {self.network['bytes'] / MIB:,.0f} MiB carried"
            ),
            (
                f"the forwarder: {self.forwarder_rows_mib:.0f} MiB of rows, of {FORWARDER_ROWS_MIB_MAX} MiB; in all {self.forwarder_mib:.0f} MiB "
                f"beside what it began with, of {FORWARDER_MIB_MAX} MiB"
            ),
        ]
        if not self.is_correct:
            emitted += [
                "WRONG" if self.is_done else "NOT DONE IN TIME",
                *self.verdict.first,
                f"{self.statuses}",
                self.complaints,
            ]
        return "\n".join(emitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violence:
    """How often a process is killed, or all connections are cut: each time another one's turn.

    Attributes:
        strokes: So many times, spread evenly over what the target has received; 0 for never.
        every_seconds: And whenever so much time has passed; 0 for never.
    """

    strokes: int = 0
    every_seconds: float = 0.0


def run(
    folder: Path,
    plan: Plan,
    *,
    menu: Menu,
    violence: Violence,
    seed: int = 0,
    is_encrypted: bool = True,
    places: Mapping[str, Place] | None = None,
    timeout: float,
) -> Outcome:
    """Runs the storm, waits until everything has arrived, and checks it."""
    outcome = Outcome(plan)
    begun = time.monotonic()
    with Fleet(
        folder, plan, options=options(folder, [*ROLES], is_encrypted=is_encrypted), menu=menu, seed=seed
    ) as fleet:
        fleet.start()
        _storm(fleet, outcome, violence, random.Random(seed), begun + timeout)
        outcome.is_done = fleet.wait(
            lambda: fleet.is_done, timeout=max(_QUIET_SECONDS, begun + timeout - time.monotonic())
        )
        outcome.seconds = time.monotonic() - begun
        outcome.statuses = fleet.stop()
        for proxy in fleet.proxies.values():
            outcome.network.update(proxy.counted)
        gate = fleet.nodes[GATE]
        if gate.peak_kib:
            outcome.forwarder_mib = (gate.peak_kib - gate.base_kib) / 1024
        outcome.forwarder_rows_mib = fleet.count(GATE, ROWS_KIB) / 1024
        outcome.verdict = fleet.verdict()
        outcome.complaints = fleet.complaints()
    return outcome


def _storm(fleet: Fleet, outcome: Outcome, violence: Violence, rng: random.Random, deadline: float) -> None:
    total = fleet.plan.total
    marks = [total * (stroke + 1) // (violence.strokes + 1) for stroke in range(violence.strokes)]
    for victim in _victims(rng):
        mark = marks.pop(0) if marks else None
        if mark is None and not violence.every_seconds:
            return
        left = deadline - time.monotonic()
        patience = min(left, violence.every_seconds) if violence.every_seconds else left

        def is_time(mark: int = total if mark is None else mark) -> bool:
            return fleet.said[STOCK]["received"] >= mark

        fleet.wait(is_time, timeout=max(patience, 0))
        # A stroke that is due by a mark falls even where the target was quicker.
        if (mark is None and fleet.count(STOCK, "received") >= total) or time.monotonic() > deadline:
            return
        for proxy in fleet.proxies.values():
            proxy.cut()
        fleet.restart(victim)
        outcome.kills[victim] += 1


def _victims(rng: random.Random) -> Iterator[str]:
    """Each has its turn, in a changing order."""
    while True:
        turn = [SHOP, GATE, STOCK]
        rng.shuffle(turn)
        yield from turn


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m tests.system.storm", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, metavar="N", help="small messages (20,000)")
    parser.add_argument("--small", type=int, default=1024, metavar="BYTES", help="how long they are (1 KiB)")
    parser.add_argument("--large", type=int, default=2, metavar="N", help="large messages (2)")
    parser.add_argument("--large-bytes", type=int, default=64 * MIB, metavar="BYTES", help="how long they are (64 MiB)")
    parser.add_argument("--lanes", type=int, default=100, metavar="N", help="conversations (100)")
    parser.add_argument(
        "--kill-every", type=float, default=3.0, metavar="SECONDS", help="one process after the other (3)"
    )
    parser.add_argument(
        "--flip", type=int, default=32 * MIB, metavar="BYTES", help="a bit in so many, on average (32 MiB)"
    )
    parser.add_argument("--cut", type=int, default=64 * MIB, metavar="BYTES", help="a break in so many (64 MiB)")
    parser.add_argument("--delay", type=int, default=4 * MIB, metavar="BYTES", help="a halt in so many (4 MiB)")
    parser.add_argument("--delay-seconds", type=float, default=0.5, metavar="SECONDS", help="the longest halt (0.5)")
    parser.add_argument(
        "--encrypted", action=BooleanOptionalAction, default=True, help="TLS, which sees each flipped bit first"
    )
    parser.add_argument("--namespaces", action="store_true", help="a network namespace for each process (needs root)")
    parser.add_argument(
        "--netem", default="", help="and what the kernel does to their packets, such as 'delay 5ms 4ms loss 1%%'"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS")
    parser.add_argument("--folder", type=Path, help="where the instances stand; kept (a temporary one)")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Runs the command."""
    asked = _arguments().parse_args(given)
    plan = Plan(
        lanes=asked.lanes,
        messages=asked.messages,
        small_bytes=asked.small,
        large=asked.large,
        large_bytes=asked.large_bytes,
    )
    menu = Menu(flip_bytes=asked.flip, cut_bytes=asked.cut, delay_bytes=asked.delay, delay_seconds=asked.delay_seconds)
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        spaces = stack.enter_context(Namespaces([*ROLES], netem=asked.netem)) if asked.namespaces else None
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = run(
            folder,
            plan,
            menu=menu,
            violence=Violence(every_seconds=asked.kill_every),
            seed=asked.seed,
            is_encrypted=asked.encrypted,
            places=spaces.places if spaces else None,
            timeout=asked.timeout,
        )
    print(outcome)
    return 0 if outcome.is_correct else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:  # what this machine does not allow
        sys.exit(f"storm: {error}")
