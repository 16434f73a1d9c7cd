from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.events import LOGGER
from ssbroker.testing.simulation import Machine


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What is damaged in masses and told of as an event need not be logged as well."""
    level = LOGGER.level
    LOGGER.setLevel(logging.CRITICAL)
    yield
    LOGGER.setLevel(level)


@pytest.fixture
def machine() -> Machine:
    """What the tests are about; those of the planted bugs hand over the same, with a bug in it."""
    return DialogEngine
