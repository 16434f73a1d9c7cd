"""What is wrong with a routing configuration, before the messages find out."""

from __future__ import annotations

from ssbroker.diagnose.circling import Loop, loops
from ssbroker.diagnose.codes import CODES, Code, Severity
from ssbroker.diagnose.comparing import Comparer, compare
from ssbroker.diagnose.comparison import CAUSES, CHANGES, LOAD, Change, Comparison
from ssbroker.diagnose.expiring import Expiry, expiries
from ssbroker.diagnose.findings import FINDINGS, Finding, Findings
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.linting import lint
from ssbroker.diagnose.page import html_report
from ssbroker.diagnose.reaching import REACHABILITY, reachability
from ssbroker.diagnose.sarif_report import sarif
from ssbroker.diagnose.stuck_queue import STUCK, stuck
from ssbroker.diagnose.tracing import Hop, Trace, trace
from ssbroker.diagnose.ways import Fate

__all__ = [
    "CAUSES",
    "CHANGES",
    "CODES",
    "FINDINGS",
    "LOAD",
    "REACHABILITY",
    "STUCK",
    "Change",
    "Code",
    "Comparer",
    "Comparison",
    "Expiry",
    "Fate",
    "Finding",
    "Findings",
    "Fleet",
    "Hop",
    "Loop",
    "Severity",
    "Trace",
    "compare",
    "expiries",
    "html_report",
    "lint",
    "loops",
    "reachability",
    "sarif",
    "stuck",
    "trace",
]
