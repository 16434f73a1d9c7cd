from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.events import LOGGER
from ssbroker.testing.simulation import EngineFactory


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Disables logging of damaged rows, of which there are many."""
    level = LOGGER.level
    LOGGER.setLevel(logging.CRITICAL)
    yield
    LOGGER.setLevel(level)


@pytest.fixture
def engine() -> EngineFactory:
    """The engine under test; the tests of planted bugs replace it by one with a bug."""
    return DialogEngine
