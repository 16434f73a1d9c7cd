"""Why a conversation goes where it goes."""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass
from typing import Any

from ssbroker.explanation_text import render


@dataclass(frozen=True, repr=False)
class Explanation:
    """The whole way of one conversation through the routing process; `str()` of it is what a DBA wants to read.

    Examples:
        >>> from ssbroker import Catalog, Router, schemas
        >>> explanation = Router(Catalog(schemas.ROUTES.empty_table())).explain("//Orders", database="msdb")
        >>> print(str(explanation).splitlines()[-1])
        Decision: DELAYED, waits in the transmission queue of "msdb" (step 7, no_route).
    """

    details: dict[str, Any]
    """Each table that was read, each step with the routes it saw, the classes, the databases, the decision; see `to_dict`."""

    @property
    def decision(self) -> dict[str, Any]:
        """The columns of the decision as Python values; `broker_instance` is a `uuid.UUID` or None."""
        decision = dict(self.details["decision"])
        broker_instance = decision["broker_instance"]
        decision["broker_instance"] = None if broker_instance is None else uuid.UUID(broker_instance)
        return decision

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold; GUIDs and moments are text.

        Examples:
            >>> from ssbroker import Catalog, Router, schemas
            >>> explanation = Router(Catalog(schemas.ROUTES.empty_table())).explain("//Orders", database="msdb")
            >>> [step["step"] for step in explanation.to_dict()["passes"][0]["steps"]]
            [1, 2, 3, 4, 5, 6, 7]
        """
        return copy.deepcopy(self.details)

    def __str__(self) -> str:
        return render(self.details)

    def __repr__(self) -> str:
        decision = self.details["decision"]
        return f"<Explanation of {self.details['conversation']['to_service_name']!r}: {decision['outcome']}, {decision['reason']}>"
