"""Runs simulations and prints what they counted: `python -m ssbroker.testing --seeds 200`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from ssbroker.testing.figures import Figures
from ssbroker.testing.runs import run_messages, run_seeds


def _said(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m ssbroker.testing",
        description="Simulates dialogs over a faulty network, and says whether every message arrived once, in order, unaltered.",
    )
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--seeds", type=int, default=20, metavar="N", help="how many seeds (20)")
    much.add_argument("--messages", type=int, metavar="N", help="seeds of many dialogs until N messages were sent")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (0)")
    parser.add_argument("--menus", action="store_true", help="print what goes wrong in each seed")
    return parser


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
    asked = _arguments().parse_args(given)
    runs = run_messages(asked.first, asked.messages) if asked.messages else run_seeds(asked.first, asked.seeds)
    total = Figures()
    before = sum(os.times()[:2])
    for run in runs:
        if asked.menus or not run.figures.is_right:
            _said(run.said)
        if not run.figures.is_right:
            _said(f"WRONG: {run.figures}")
        total.add(run.figures)
    spent = sum(os.times()[:2]) - before
    speed = total.messages / spent if spent else 0
    _said(f"{total}; {speed:,.0f} messages for each second of processor time")
    return 0 if total.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
