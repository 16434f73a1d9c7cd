"""What was sent at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Flight:
    """Fragments that were sent at one moment and wait for their acknowledgement.

    Attributes:
        due: When what is left of them is sent again.
        attempt: How often they were sent again before.
        fragments: Which they were, as bits for each message.
    """

    due: int
    attempt: int
    fragments: dict[int, int]
