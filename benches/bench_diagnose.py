"""A fleet diagnosed: the matrix of all databases and services, loops, findings. What is told is first held against conversations followed."""

from __future__ import annotations

import random
import resource
import sys
import time
import uuid
from collections import defaultdict
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pytest

from benches.fleet import FULL, SHORT, fleet, service
from benches.settings import SIZE, SIZES, report
from ssbroker.diagnose import Fate, Fleet, lint, loops, reachability, trace

pytestmark = [pytest.mark.timeout(3600)]

HEADING: Final = "a fleet diagnosed"
FLEET: Final = SHORT if SIZE is SIZES["short"] else FULL
FOLLOWED: Final = 50
FATE: Final = ("outcome", "at_instance", "target_database", "next_hop_address", "reason")
pc: Any = pyarrow.compute  # its stubs do not know dictionaries


@pytest.fixture(scope="module")
def measured() -> Fleet:
    """The fleet of this size."""
    return fleet(FLEET)


def test_reachability(measured: Fleet) -> None:
    matrix, took = timed(lambda: reachability(measured))
    assert matrix.num_rows >= FLEET.instances * FLEET.services
    _follow(measured, matrix)
    told = f"{FLEET.instances:,} instances, {FLEET.routes:,} routes each, {FLEET.services:,} services"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform == "darwin" else 1024)
    report(HEADING, f"{told}: the matrix, {matrix.num_rows:,} rows, in {took}; {memory:,.0f} MiB at most")


def _follow(measured: Fleet, matrix: pa.Table) -> None:
    """Some conversations, hop by hop by `explain`, end as the matrix says."""
    source = random.Random(3)
    asked = {service(source.randrange(FLEET.services)): source.choice(list(measured)) for _ in range(FOLLOWED)}
    told: defaultdict[tuple[str, str], set[Fate]] = defaultdict(set)
    for row in matrix.filter(pc.is_in(matrix["service"], pa.array(list(asked)))).to_pylist():
        told[row["instance"], row["service"]].add(Fate(*(row[name] for name in FATE)))
    for wanted, instance in asked.items():
        conversation = uuid.UUID(int=source.getrandbits(128))
        assert trace(measured, wanted, instance=instance, conversation_id=conversation).end in told[instance, wanted]


def test_loops(measured: Fleet) -> None:
    found, took = timed(lambda: loops(measured))
    assert found
    report(HEADING, f"its loops, {len(found):,} of them, in {took}")


def test_findings(measured: Fleet) -> None:
    found, took = timed(lambda: lint(measured))
    assert {"SSB016", "SSB020"} <= {finding.code for finding in found}
    report(HEADING, f"its findings, {len(found):,} of them, in {took}")


def timed(work: Any) -> tuple[Any, str]:
    """What some work gives, and how long it took, by the wall and by the CPU: others may use the machine too."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, f"{time.perf_counter() - wall:.1f} s ({time.process_time() - cpu:.1f} s of the CPU)"
