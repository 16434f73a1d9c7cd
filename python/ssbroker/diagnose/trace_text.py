"""A trace, told to an administrator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ssbroker.diagnose.ways import Fate
from ssbroker.wording import printable, quoted, route_name, soften

if TYPE_CHECKING:
    from ssbroker.diagnose.tracing import Hop, Trace


def render(trace: Trace) -> str:
    """The trace in lines."""
    return soften("\n".join(_lines(trace)))


def _lines(trace: Trace) -> Iterator[str]:
    yield f"{_place(trace)} begins a conversation for {quoted(trace.to_service_name)}."
    yield from _way(trace)
    back = trace.acknowledgement
    if back is not None:
        yield ""
        yield f"The acknowledgement goes back to {quoted(back.to_service_name)} in {_place(trace)}."
        yield from _way(back)
        if not back.returned_to(trace):
            yield "It does not come back: the initiator sends the message again, about every minute, until the conversation times out."


def _place(trace: Trace) -> str:
    return printable(f"{trace.instance}/{trace.database}")


def _way(trace: Trace) -> Iterator[str]:
    for number, hop in enumerate(trace.hops, start=1):
        yield f"  {number}. {printable(hop.instance)}, table of {quoted(hop.database or 'msdb')}: {_decided(hop)}"
    yield f"  => {ending(trace.end)}"
    others = [fate for fate in trace.possible if fate != trace.end]
    for fate in others:
        yield f"     or, where a tie falls another way: {ending(fate)}"


def _decided(hop: Hop) -> str:
    decision = hop.decision
    outcome, reason = decision["outcome"], decision["reason"]
    told = outcome if outcome != "LOCAL" else f"LOCAL in {quoted(decision['target_database'])}"
    if decision["next_hop_address"] is not None:
        told += f" to {decision['next_hop_address']}"
    how = [] if decision["match_step"] is None else [f"step {decision['match_step']}"]
    route = _route(hop)
    if route is not None:
        how.append(route_name(route))
    if reason != "matched":
        how.append(reason)
    return f"{told} ({', '.join(how)})"


def _route(hop: Hop) -> dict[str, Any] | None:
    """The route that was taken, by the last table that was read."""
    passes = hop.explanation.details["passes"]
    picked = [group["picked"] for group in passes[-1]["classes"] if group["picked"] is not None]
    return picked[-1] if picked and hop.decision["route_id"] == picked[-1]["route_id"] else None


def ending(fate: Fate) -> str:
    """What becomes of a message, in words.

    Examples:
        >>> soften(ending(Fate("DELAYED", "NORTH", reason="no_route")))
        'DELAYED: waits in NORTH (no_route)'
    """
    instance = printable(fate.instance or "")
    if fate.outcome == "DELIVERED":
        return f"DELIVERED to {instance}/{printable(fate.database or '')}"
    if fate.outcome == "DELAYED":
        return f"DELAYED: waits in {instance} ({fate.reason})"
    if fate.outcome == "DROPPED":
        return f"DROPPED by {instance} ({fate.reason}): not acknowledged, so the sender sends it again"
    if fate.outcome == "ELSEWHERE":
        return f"ELSEWHERE: leaves for {fate.address}, which no instance here has"
    return "LOOP: goes in circles until its hops or its lifetime are used up"
