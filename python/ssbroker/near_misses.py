"""Names that were meant, perhaps: alike but for case, white space or Unicode form, or one letter away."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from ssbroker.wording import literal, quoted, soften

BROKER_CONFIGURATION: Final = "SQL/ServiceBroker/BrokerConfiguration"
"""The dynamic routing service."""

_NAMED_MAX: Final = 3
_LETTER_COUNTS_FROM: Final = 4
"""In shorter names one letter more or less makes another name."""


class NearNames:
    """The names that there are, to be found by names that are nearly theirs.

    Args:
        names: What there is.

    Examples:
        >>> names = NearNames(["//Orders", "//Order", "//Stock"])
        >>> names.of("//orders"), names.of("//Stokc"), names.of("//Stock")
        (['//Orders'], ['//Stock'], [])
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._alike: defaultdict[str, list[str]] = defaultdict(list)
        for name in dict.fromkeys(names):
            self._alike[_folded(name)].append(name)

    def of(self, wanted: str) -> list[str]:
        """The names that are nearly what was asked for.

        Args:
            wanted: What was asked for.

        Returns:
            A few of them; none where one is just that.
        """
        folded = _folded(wanted)
        near = self._alike.get(folded, [])
        if not near and len(folded) >= _LETTER_COUNTS_FROM:
            near = [
                name for other, names in self._alike.items() if _is_one_letter_away(folded, other) for name in names
            ]
        return [] if wanted in near else sorted(near)[:_NAMED_MAX]


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """The question at the end of a message; empty where nothing is near.

    Examples:
        >>> did_you_mean("sales", ["Sales", "Stock"])
        '; did you mean "Sales"?'
    """
    near = NearNames(names).of(wanted)
    return soften(f"; did you mean {' or '.join(map(quoted, near))}?") if near else ""


def mended(details: dict[str, Any], route: dict[str, Any]) -> dict[str, Any]:
    """A route that came close, with all that keeps it from being found made right: after the first of several alone the next stands in the way.

    Args:
        details: What the native router told of a conversation.
        route: The route.

    Returns:
        The route as it would be found; as it is where no change of ALTER ROUTE makes it match.
    """
    name, broker = details["conversation"]["to_service_name"], details["conversation"]["to_broker_instance"]
    changed: dict[str, Any] = {}
    if route["remote_service_name"] not in (None, name, BROKER_CONFIGURATION):
        changed["remote_service_name"] = name
    if broker is not None and route["broker_instance"] not in (None, broker):
        changed["broker_instance"] = broker
    lifetime = route["lifetime"]
    if lifetime is not None and datetime.fromisoformat(lifetime) <= datetime.fromisoformat(details["now"]):
        changed["lifetime"] = None
    return route | changed


def changes(details: dict[str, Any], route: dict[str, Any]) -> list[str]:
    """The clauses of ALTER ROUTE by which a route is found.

    Args:
        details: What the native router told of a conversation.
        route: A route that came close.

    Returns:
        The clauses; none for what no change of these makes match.

    Examples:
        >>> asked = {"to_service_name": "//Orders", "to_broker_instance": None}
        >>> route = {"remote_service_name": "//orders", "broker_instance": None, "lifetime": None}
        >>> changes({"conversation": asked, "now": "2026-11-20T21:00:00Z"}, route)
        ["SERVICE_NAME = N'//Orders'"]
    """
    found = mended(details, route)
    clauses = {
        "remote_service_name": f"SERVICE_NAME = {literal(found['remote_service_name'] or '')}",
        "broker_instance": f"BROKER_INSTANCE = N'{found['broker_instance']}'",
        "lifetime": "LIFETIME = <seconds>",
    }
    return [clause for column, clause in clauses.items() if found[column] != route[column]]


def needs_forwarding(details: dict[str, Any], table: dict[str, Any], route: dict[str, Any] | None = None) -> bool:
    """Whether a message that was routed by a table would be dropped on its way out of this instance (R25).

    Args:
        details: What the native router told of a conversation.
        table: The table, as the router told of it.
        route: The route by which it would leave; None for one to another instance.

    Returns:
        Whether.
    """
    stays = route is not None and (
        route["address"].upper() == "LOCAL" or route["remote_service_name"] == BROKER_CONFIGURATION
    )
    return table["origin"] != "begun_here" and not details["message_forwarding"] and not stays


def _folded(name: str) -> str:
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _is_one_letter_away(one: str, other: str) -> bool:
    """Whether one letter is missing, too many or another, or two that stand side by side have changed places."""
    if abs(len(one) - len(other)) > 1:
        return False
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    ends = (
        (one[same + 1 :], other[same + 1 :]),
        (one[same + 1 :], other[same:]),
        (one[same:], other[same + 1 :]),
        (one[same : same + 2][::-1] + one[same + 2 :], other[same:]),
    )
    return any(mine == theirs for mine, theirs in ends)
