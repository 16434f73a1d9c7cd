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
from ssbroker import Router
from ssbroker.diagnose import Finding, Fleet, Loop, RoutingEnd, lint, loops, reachability, trace

pytestmark = [pytest.mark.timeout(3600)]

HEADING: Final = "a fleet diagnosed"
FLEET: Final = SHORT if SIZE is SIZES["short"] else FULL
FOLLOWED: Final = 50
LIMIT_S: Final = 60
"""Each question about the full fleet is to be answered in a minute on two quiet cores."""
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
    told: defaultdict[tuple[str, str], set[RoutingEnd]] = defaultdict(set)
    for row in matrix.filter(pc.is_in(matrix["service"], pa.array(list(asked)))).to_pylist():
        told[row["instance"], row["service"]].add(RoutingEnd(*(row[name] for name in FATE)))
    for wanted, instance in asked.items():
        conversation = uuid.UUID(int=source.getrandbits(128))
        assert trace(measured, wanted, instance=instance, conversation_id=conversation).end in told[instance, wanted]


def test_loops(measured: Fleet) -> None:
    found, took = timed(lambda: loops(measured))
    assert found
    for loop in found:
        _goes_round(measured, loop)
    report(HEADING, f"its loops, {len(found):,} of them, in {took}")


def _goes_round(measured: Fleet, loop: Loop) -> None:
    """What begins at the first instance of a loop, in the table for what arrives, comes back to it."""
    asked = {
        "to_service_name": loop.services[0] or "a service that nobody knows",
        "to_broker_instance": loop.broker_instances[0],
        "instance": loop.instances[0],
        "database": "msdb",
    }
    ids = (uuid.UUID(int=number) for number in range(FOLLOWED))
    assert any(trace(measured, **asked, conversation_id=each).end.outcome == "LOOP" for each in ids), str(loop)  # type: ignore[arg-type]


def test_findings(measured: Fleet) -> None:
    found, took = timed(lambda: lint(measured))
    assert {"SSB016", "SSB020"} <= {finding.code for finding in found}
    dropping = [finding for finding in found if finding.code == "SSB016"]
    for finding in random.Random(4).sample(dropping, FOLLOWED):
        _drops(measured, finding)
    report(HEADING, f"its findings, {len(found):,} of them, in {took}")


def _drops(measured: Fleet, finding: Finding) -> None:
    """A route of which it is said that forwarding is off is one that drops what arrives for its service."""
    catalog = measured[str(finding.instance)]
    (route,) = (
        row
        for row in catalog.routes.to_pylist()
        if (row["database"], row["route_id"]) == (finding.database, finding.route_id)
    )
    decided = Router(catalog).explain(route["remote_service_name"], to_broker_instance=route["broker_instance"])
    assert (decided.decision["outcome"], decided.decision["reason"]) == ("DROPPED", "forwarding_disabled")


def timed(work: Any) -> tuple[Any, str]:
    """What some work gives, and how long it took, by the wall and by the CPU, beside its limit: others may use the machine too."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    took, used = time.perf_counter() - wall, time.process_time() - cpu
    limit = f", limit {LIMIT_S} s" if FLEET is FULL else ""
    return result, f"{took:.1f} s ({used:.1f} s of the CPU{limit})"
