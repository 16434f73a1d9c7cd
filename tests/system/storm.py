"""A storm: three processes exchange messages over a network with faults, and each is killed repeatedly.

`python -m tests.system.storm --messages 200000 --large 20` prints the counts; the exit status is 0 if every message
arrived exactly once, in order and unaltered.
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
from tests.system.faults import FaultRates
from tests.system.fleet import FORWARD_MEGABYTES, GATE, ROLES, SHOP, STOCK, Fleet
from tests.system.namespaces import Location, Namespaces
from tests.system.node import ROWS_KIB
from tests.system.serve_options import options
from tests.system.traffic import Plan

MIB: Final = 1 << 20
FORWARDER_ROWS_MIB_MAX: Final = FORWARD_MEGABYTES + 8 + 4 * 2
"""The memory limit of a forwarder's rows: forwarded rows, its inbox, an outbox for each of four addresses."""
FORWARDER_MIB_MAX: Final = FORWARDER_ROWS_MIB_MAX + 128
"""The memory limit of its process beyond that at its start:

lazily loaded code, TLS, and allocator caches. 66 to 113 were measured.
"""
_QUIET_SECONDS: Final = 300.0


@dataclass(slots=True)
class Outcome:
    """The counts of a storm.

    Attributes:
        verdict: Comparison of sent and received messages.
        is_done: Whether all messages were received, answered and acknowledged, and all dialogs ended, in time.
        seconds: Duration.
        kills: Number of kills of each process.
        network: Counts of the proxies.
        forwarder_mib: Memory that the forwarder used beyond that at its start; -1 if the system does not report it.
        forwarder_rows_mib: Peak memory of rows in the forwarder.
        statuses: Exit statuses of the processes.
        error_output: Standard error of the processes.
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
    error_output: str = ""

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
        total_bytes = self.plan.messages * self.plan.small_bytes + self.plan.large * self.plan.large_bytes
        kills = ", ".join(f"{name} {self.kills[name]}" for name in (SHOP, GATE, STOCK))
        lines = [
            f"{self.verdict}",
            f"{self.seconds:.0f} s, {self.plan.total / self.seconds:,.0f} messages/s, {total_bytes / MIB / self.seconds:.1f} MiB/s",
            f"kills: {kills}",
            (
                f"network: {self.network['connections']} connections, {self.network['cut']} cut, {self.network['flips']} bits flipped, "
                f"{self.network['delays']} delays, {self.network['bytes'] / MIB:,.0f} MiB transmitted"
            ),
            (
                f"forwarder: {self.forwarder_rows_mib:.0f} of {FORWARDER_ROWS_MIB_MAX} MiB of rows; {self.forwarder_mib:.0f} of {FORWARDER_MIB_MAX} MiB "
                "more than at its start in total"
            ),
        ]
        if not self.is_correct:
            lines += [
                "FAILED" if self.is_done else "TIMED OUT",
                *self.verdict.first,
                f"{self.statuses}",
                self.error_output,
            ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSchedule:
    """How often all connections are cut and one process is killed; the processes take turns.

    Attributes:
        kills: Number of kills, spread evenly over the messages that the target receives.
        every_seconds: Maximum interval between kills; 0 for none.
    """

    kills: int = 0
    every_seconds: float = 0.0


def run(
    folder: Path,
    plan: Plan,
    *,
    rates: FaultRates,
    schedule: KillSchedule,
    seed: int = 0,
    is_encrypted: bool = True,
    locations: Mapping[str, Location] | None = None,
    timeout: float,
) -> Outcome:
    """Runs the storm, waits until everything has arrived, and checks it."""
    outcome = Outcome(plan)
    started = time.monotonic()
    with Fleet(
        folder, plan, options=options(folder, [*ROLES], is_encrypted=is_encrypted), rates=rates, seed=seed
    ) as fleet:
        fleet.start()
        _storm(fleet, outcome, schedule, random.Random(seed), started + timeout)
        outcome.is_done = fleet.wait(
            lambda: fleet.is_done, timeout=max(_QUIET_SECONDS, started + timeout - time.monotonic())
        )
        outcome.seconds = time.monotonic() - started
        outcome.statuses = fleet.stop()
        for proxy in fleet.proxies.values():
            outcome.network.update(proxy.counted)
        gate = fleet.nodes[GATE]
        if gate.peak_kib:
            outcome.forwarder_mib = (gate.peak_kib - gate.base_kib) / 1024
        outcome.forwarder_rows_mib = fleet.count(GATE, ROWS_KIB) / 1024
        outcome.verdict = fleet.verdict()
        outcome.error_output = fleet.error_output()
    return outcome


def _storm(fleet: Fleet, outcome: Outcome, schedule: KillSchedule, rng: random.Random, deadline: float) -> None:
    total = fleet.plan.total
    marks = [total * (stroke + 1) // (schedule.kills + 1) for stroke in range(schedule.kills)]
    for victim in _victims(rng):
        mark = marks.pop(0) if marks else None
        if mark is None and not schedule.every_seconds:
            return
        left = deadline - time.monotonic()
        interval = min(left, schedule.every_seconds) if schedule.every_seconds else left

        def is_time(mark: int = total if mark is None else mark) -> bool:
            return fleet.reports[STOCK]["received"] >= mark

        fleet.wait(is_time, timeout=max(interval, 0))
        # A kill that is due by a mark happens even if the target was faster.
        if (mark is None and fleet.count(STOCK, "received") >= total) or time.monotonic() > deadline:
            return
        for proxy in fleet.proxies.values():
            proxy.cut()
        fleet.restart(victim)
        outcome.kills[victim] += 1


def _victims(rng: random.Random) -> Iterator[str]:
    """Yields the processes in turn, in a changing order."""
    while True:
        turn = [SHOP, GATE, STOCK]
        rng.shuffle(turn)
        yield from turn


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m tests.system.storm", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, metavar="N", help="small messages (20,000)")
    parser.add_argument("--small", type=int, default=1024, metavar="BYTES", help="size of a small message (1 KiB)")
    parser.add_argument("--large", type=int, default=2, metavar="N", help="large messages (2)")
    parser.add_argument(
        "--large-bytes", type=int, default=64 * MIB, metavar="BYTES", help="size of a large message (64 MiB)"
    )
    parser.add_argument("--lanes", type=int, default=100, metavar="N", help="conversations (100)")
    parser.add_argument("--kill-every", type=float, default=3.0, metavar="SECONDS", help="interval between kills (3)")
    parser.add_argument(
        "--flip", type=int, default=32 * MIB, metavar="BYTES", help="mean number of bytes between flipped bits (32 MiB)"
    )
    parser.add_argument(
        "--cut", type=int, default=64 * MIB, metavar="BYTES", help="mean number of bytes between disconnects (64 MiB)"
    )
    parser.add_argument(
        "--delay", type=int, default=4 * MIB, metavar="BYTES", help="mean number of bytes between delays (4 MiB)"
    )
    parser.add_argument("--delay-seconds", type=float, default=0.5, metavar="SECONDS", help="maximum delay (0.5)")
    parser.add_argument(
        "--encrypted", action=BooleanOptionalAction, default=True, help="use TLS, which detects each flipped bit first"
    )
    parser.add_argument("--namespaces", action="store_true", help="a network namespace for each process (needs root)")
    parser.add_argument(
        "--netem", default="", help="what the kernel does to their packets, such as 'delay 5ms 4ms loss 1%%'"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS")
    parser.add_argument("--folder", type=Path, help="folder of the instances; kept (a temporary one)")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Runs the command."""
    arguments = _arguments().parse_args(given)
    plan = Plan(
        lanes=arguments.lanes,
        messages=arguments.messages,
        small_bytes=arguments.small,
        large=arguments.large,
        large_bytes=arguments.large_bytes,
    )
    rates = FaultRates(
        flip_bytes=arguments.flip,
        cut_bytes=arguments.cut,
        delay_bytes=arguments.delay,
        delay_seconds=arguments.delay_seconds,
    )
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        spaces = stack.enter_context(Namespaces([*ROLES], netem=arguments.netem)) if arguments.namespaces else None
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = run(
            folder,
            plan,
            rates=rates,
            schedule=KillSchedule(every_seconds=arguments.kill_every),
            seed=arguments.seed,
            is_encrypted=arguments.encrypted,
            locations=spaces.locations if spaces else None,
            timeout=arguments.timeout,
        )
    print(outcome)
    return 0 if outcome.is_correct else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:  # such as missing permissions for namespaces
        sys.exit(f"storm: {error}")
