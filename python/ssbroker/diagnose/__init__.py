"""Finds problems in routing configurations before messages are lost or delayed."""

from __future__ import annotations

from ssbroker.diagnose.compare import CAUSES, CHANGES, LOAD, Change, Comparer, Comparison, compare
from ssbroker.diagnose.expiry import Expiry, expiries
from ssbroker.diagnose.findings import CODES, FINDINGS, Code, Finding, Findings, Severity, Subject
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.html_report import html_report
from ssbroker.diagnose.lint import lint, not_checked
from ssbroker.diagnose.reachability import REACHABILITY, reachability
from ssbroker.diagnose.reachability_changes import REACHABILITY_CHANGES, reachability_changes
from ssbroker.diagnose.routing_graph import RoutingEnd
from ssbroker.diagnose.routing_loops import Loop, loops
from ssbroker.diagnose.sarif import sarif
from ssbroker.diagnose.stuck_messages import STUCK, stuck
from ssbroker.diagnose.trace import Hop, Trace, trace

__all__ = [
    "CAUSES",
    "CHANGES",
    "CODES",
    "FINDINGS",
    "LOAD",
    "REACHABILITY",
    "REACHABILITY_CHANGES",
    "STUCK",
    "Change",
    "Code",
    "Comparer",
    "Comparison",
    "Expiry",
    "Finding",
    "Findings",
    "Fleet",
    "Hop",
    "Loop",
    "RoutingEnd",
    "Severity",
    "Subject",
    "Trace",
    "compare",
    "expiries",
    "html_report",
    "lint",
    "loops",
    "not_checked",
    "reachability",
    "reachability_changes",
    "sarif",
    "stuck",
    "trace",
]


def __dir__() -> list[str]:
    return sorted(__all__)
