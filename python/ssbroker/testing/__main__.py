"""Runs simulations and prints their results: `python -m ssbroker.testing --seeds 200`."""

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from ssbroker.exceptions import MalformedDataError
from ssbroker.testing.runner import LARGE_DIALOGS, LARGE_MESSAGES, RunJournal, run_messages, run_seeds
from ssbroker.testing.simulation import SimulationResult


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parse_count(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ArgumentTypeError(f"expected a non-negative integer, got {text!r:.80}")
    return int(text)


def _argument_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m ssbroker.testing",
        description="Simulates dialogs over a faulty network, and reports whether every message arrived exactly once, in order and unaltered.",
    )
    much = parser.add_mutually_exclusive_group()
    much.add_argument(
        "--seeds", type=_parse_count, default=20, metavar="N", help="number of seeds to run (default: 20)"
    )
    much.add_argument(
        "--messages", type=_parse_count, metavar="N", help="run seeds with many dialogs until N messages were sent"
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (default: 0)")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="record results in FILE, and resume from it")
    parser.add_argument("--menus", action="store_true", help="print the faults and settings of each seed")
    return parser


def _journal(arguments: Namespace) -> RunJournal | None:
    if arguments.journal is None:
        return None
    large = {"dialogs": LARGE_DIALOGS, "messages": LARGE_MESSAGES} if arguments.messages is not None else {}
    return RunJournal(arguments.journal, {"first": arguments.first, **large})


def main(arguments_given: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments_given: The command-line arguments; None means the arguments of the process.

    Returns:
        0 if every message arrived correctly, 1 otherwise.

    Examples:
        >>> main(["--seeds", "0"])
        0 messages: 0 lost, 0 duplicated, 0 out of order, 0 altered; 0 fragments sent: ...
        0
    """
    parser = _argument_parser()
    arguments = parser.parse_args(arguments_given)
    try:
        journal = _journal(arguments)
    except MalformedDataError as error:
        parser.error(str(error))
    total, done = (journal.total, journal.seeds) if journal else (SimulationResult(), 0)
    counted_before, before = total.messages, sum(os.times()[:2])
    first = arguments.first + done
    runs = (
        run_seeds(first, arguments.seeds - done)
        if arguments.messages is None
        else run_messages(first, arguments.messages - total.messages)
    )
    for run in runs:
        if arguments.menus or not run.result.is_correct:
            _print(run.description)
        if not run.result.is_correct:
            _print(f"WRONG: {run.result}")
        if journal:
            journal.add(run.result)
        else:
            total.add(run.result)
    spent = sum(os.times()[:2]) - before
    speed = (total.messages - counted_before) / spent if spent else 0
    _print(f"{total}; {speed:,.0f} messages per second of CPU time")
    return 0 if total.is_correct else 1


if __name__ == "__main__":
    # The faults cause events on purpose, such as corrupted messages; without a handler, these would be printed.
    logging.getLogger("ssbroker").addHandler(logging.NullHandler())
    sys.exit(main())
