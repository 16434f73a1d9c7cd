"""Diagnosis of a fleet: reachability, loops and findings. The results are checked against traced conversations."""

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

HEADING: Final = "diagnosis of a fleet"
FLEET: Final = SHORT if SIZE is SIZES["short"] else FULL
TRACED: Final = 50
LIMIT_S: Final = 60
"""The target for each call on the full fleet, on two idle cores."""
FATE: Final = ("outcome", "at_instance", "target_database", "next_hop_address", "reason")
pc: Any = pyarrow.compute  # its stubs have no types for dictionaries


@pytest.fixture(scope="module")
def measured() -> Fleet:
    """Returns the fleet of this size."""
    return fleet(FLEET)


def test_reachability(measured: Fleet) -> None:
    matrix, took = timed(lambda: reachability(measured))
    assert matrix.num_rows >= FLEET.instances * FLEET.services
    _check_traces(measured, matrix)
    size = f"{FLEET.instances:,} instances, {FLEET.routes:,} routes each, {FLEET.services:,} services"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform == "darwin" else 1024)
    report(HEADING, f"{size}: reachability, {matrix.num_rows:,} rows, in {took}; peak memory {memory:,.0f} MiB")


def _check_traces(measured: Fleet, matrix: pa.Table) -> None:
    """Checks that traced conversations end as in the matrix."""
    source = random.Random(3)
    asked = {service(source.randrange(FLEET.services)): source.choice(list(measured)) for _ in range(TRACED)}
    ends: defaultdict[tuple[str, str], set[RoutingEnd]] = defaultdict(set)
    for row in matrix.filter(pc.is_in(matrix["service"], pa.array(list(asked)))).to_pylist():
        ends[row["instance"], row["service"]].add(RoutingEnd(*(row[name] for name in FATE)))
    for wanted, instance in asked.items():
        conversation = uuid.UUID(int=source.getrandbits(128))
        assert trace(measured, wanted, instance=instance, conversation_id=conversation).end in ends[instance, wanted]


def test_loops(measured: Fleet) -> None:
    found, took = timed(lambda: loops(measured))
    assert found
    for loop in found:
        _check_loop(measured, loop)
    report(HEADING, f"{len(found):,} loops in {took}")


def _check_loop(measured: Fleet, loop: Loop) -> None:
    """Checks that a message from outside returns to the first instance of a loop, or that the second of two does not send it back."""
    asked = {
        "to_service_name": loop.services[0] or "an unknown service",
        "to_broker_instance": loop.broker_instances[0],
        "instance": loop.instances[0],
        "database": "msdb",
    }
    ids = (uuid.UUID(int=number) for number in range(TRACED))
    # A generator, so that no conversation is traced after one that proves the loop.
    ends = (trace(measured, **asked, conversation_id=each).end for each in ids)  # type: ignore[arg-type]
    outcome, reason = ("DROPPED", "sent_back") if len(loop.instances) == 2 else ("LOOP", None)
    assert any(end.outcome == outcome and reason in (None, end.reason) for end in ends), str(loop)


def test_findings(measured: Fleet) -> None:
    found, took = timed(lambda: lint(measured))
    assert {"SSB016", "SSB020"} <= {finding.code for finding in found}
    dropping = [finding for finding in found if finding.code == "SSB016"]
    for finding in random.Random(4).sample(dropping, TRACED):
        _check_dropped(measured, finding)
    report(HEADING, f"{len(found):,} findings in {took}")


def _check_dropped(measured: Fleet, finding: Finding) -> None:
    """Checks that a route reported for disabled forwarding drops messages from outside."""
    catalog = measured[str(finding.instance)]
    (route,) = (
        row
        for row in catalog.routes.to_pylist()
        if (row["database"], row["route_id"]) == (finding.database, finding.route_id)
    )
    decided = Router(catalog).explain(route["remote_service_name"], to_broker_instance=route["broker_instance"])
    assert (decided.decision["outcome"], decided.decision["reason"]) == ("DROPPED", "forwarding_disabled")


def timed(work: Any) -> tuple[Any, str]:
    """Returns the result of `work`, and its wall and CPU time as text. The CPU time matters if the machine is busy."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    took, used = time.perf_counter() - wall, time.process_time() - cpu
    limit = f", limit {LIMIT_S} s" if FLEET is FULL else ""
    return result, f"{took:.1f} s (CPU time {used:.1f} s{limit})"
