"""Runs simulations and prints what they counted: `python -m ssbroker.testing --seeds 200`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from ssbroker.exceptions import MalformedDataError
from ssbroker.testing.runner import LARGE_DIALOGS, LARGE_MESSAGES, RunJournal, run_messages, run_seeds
from ssbroker.testing.simulation import SimulationResult


def _said(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ArgumentTypeError(f"expected a whole number, 0 or more; got {text!r:.80}")
    return int(text)


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m ssbroker.testing",
        description="Simulates dialogs over a faulty network, and says whether every message arrived once, in order, unaltered.",
    )
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--seeds", type=_count, default=20, metavar="N", help="how many seeds (20)")
    much.add_argument("--messages", type=_count, metavar="N", help="seeds of many dialogs until N messages were sent")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (0)")
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="keep the figures there, and go on where FILE ends"
    )
    parser.add_argument("--menus", action="store_true", help="print what goes wrong in each seed")
    return parser


def _journal(asked: Namespace) -> RunJournal | None:
    if asked.journal is None:
        return None
    large = {"dialogs": LARGE_DIALOGS, "messages": LARGE_MESSAGES} if asked.messages is not None else {}
    return RunJournal(asked.journal, {"first": asked.first, **large})


def main(given: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        given: The arguments; those of the process unless given.

    Returns:
        0 where all is right, 1 where it is not.

    Examples:
        >>> main(["--seeds", "0"])
        0 messages: 0 lost, 0 twice, 0 out of order, 0 altered; 0 fragments sent: ...
        0
    """
    parser = _arguments()
    asked = parser.parse_args(given)
    try:
        journal = _journal(asked)
    except MalformedDataError as error:
        parser.error(str(error))
    total, done = (journal.total, journal.seeds) if journal else (SimulationResult(), 0)
    counted_before, before = total.messages, sum(os.times()[:2])
    first = asked.first + done
    runs = (
        run_seeds(first, asked.seeds - done)
        if asked.messages is None
        else run_messages(first, asked.messages - total.messages)
    )
    for run in runs:
        if asked.menus or not run.figures.is_right:
            _said(run.said)
        if not run.figures.is_right:
            _said(f"WRONG: {run.figures}")
        if journal:
            journal.add(run.figures)
        else:
            total.add(run.figures)
    spent = sum(os.times()[:2]) - before
    speed = (total.messages - counted_before) / spent if spent else 0
    _said(f"{total}; {speed:,.0f} messages for each second of processor time")
    return 0 if total.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
