"""A million hostile fragments take no more memory than the limit, and honest senders are not affected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.guards.repository import ROOT
from tests.property.fragment_floods import BATCH

ALLOWANCE = 16 << 20
"""Memory allowed beyond the limit and a tenth of it, whatever the limit.

It covers the results of a push (the fragment numbers of a message in hundreds of thousands of parts), and freed memory
that the allocator keeps for ten seconds.
"""

FLOODS = (
    ("unknown_directions", "in_order", 0.5),
    ("empty_unknown_directions", "in_order", 0.5),
    ("false_counts", "in_order", 1.0),
    ("single_bytes", "in_order", 1.0),
    ("gaps", "in_order", 1.0),
    ("gaps", "unordered", 1.0),
    ("new_directions", "in_order", 1.0),
    ("contradictions", "in_order", 0.0),
)
"""Each flood, and how much of the limit it can reach (P26)."""

LIMITS = ((64 << 20, 1_000_000), (36 << 20, 400_000), (20 << 20, 250_000))
"""Limits, each with enough fragments to reach it.

Several, because a buffer that doubles has just grown at one limit and is nearly full at another.
"""


def run_flood(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.property.fragment_floods", *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident size is read from /proc")


@pytest.mark.rule("P26")
@on_linux
def test_a_result_takes_no_more_memory_than_it_holds() -> None:
    """A small message of a push does not keep buffers for everything that was pending."""
    results = 500
    report = run_flood("results", results)
    assert report["messages"] == results
    assert report["increase"] <= results * 32_000, report


@pytest.mark.rule("P26")
@pytest.mark.threat("T9")
@on_linux
@pytest.mark.parametrize(("limit", "fragments"), LIMITS)
@pytest.mark.parametrize(("flood", "order", "share"), FLOODS)
def test_a_flood_takes_no_more_memory_than_the_limit(
    flood: str, order: str, share: float, limit: int, fragments: int
) -> None:
    """Up to 1,000,000 fragments; resident memory grows by at most the limit and a tenth.

    Unknown directions leave half of the memory to known ones, whose messages of several fragments are completed
    meanwhile. Known directions may use all of it; then messages that can be released immediately are still completed.
    """
    honest_parts = 3 if share < 1 else 1
    report = run_flood(flood, order, fragments, limit, honest_parts)
    assert report["pending_bytes"] <= limit
    assert report["pending_bytes"] > (share - 0.01) * limit, "the flood was too small for the limit"
    assert report["completed"] == fragments // BATCH
    assert report["increase"] <= 1.1 * limit + ALLOWANCE, report
