"""Simulates power cuts from the command line: `python -m tests.system.power --states 1000000`."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.system.power.dialogs import Dialogs
from tests.system.power.jobs import Jobs
from tests.system.power.network import Network
from tests.system.power.run import Entry, Weakness, check_power_cuts
from tests.system.power.tables import Tables

WORKLOADS: Final[dict[str, Entry]] = {"tables": Tables, "dialogs": Dialogs, "jobs": Jobs, "network": Network}


def main() -> int:
    """Prints for each trace the number of states checked, and the faults found."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.power", description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default="tables", help="what is done to the disk")
    parser.add_argument("--states", type=int, default=100_000, help="how many states of the disk to look at")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--synchronous", default="full", help="what the files are opened with; weaker ones must fail")
    options = parser.parse_args()
    states = 0
    faults: list[str] = []
    for seed in itertools.count(options.seed):
        with tempfile.TemporaryDirectory() as folder:
            found = check_power_cuts(
                WORKLOADS[options.workload],
                Path(folder),
                seed=seed,
                weakness=Weakness(synchronous=options.synchronous),
                states_max=options.states - states,
            )
        states, faults = states + found.states, faults + found.faults
        print(f"seed {seed}: {found.operations} operations; {states:,} states, {len(faults)} wrong", flush=True)
        if states >= options.states:
            break
    print(*faults[:20], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
