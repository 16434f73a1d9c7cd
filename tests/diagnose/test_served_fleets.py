"""What `trace` predicts is what the broker does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.diagnose.served_fleets import differences_of


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [3, 17, 30, 36, 1000, 1001])
def test_served_fleets_do_what_trace_predicts(seed: int, tmp_path: Path) -> None:
    """The full run is `python -m tests.diagnose.served_fleets --fleets 300`."""
    assert differences_of(seed, tmp_path, Counter()) == []
