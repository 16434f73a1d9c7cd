"""Invalid arguments of a simulation are rejected: a share of 30 for 30 % lost everything, and NaN nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ssbroker.exceptions import OptionError
from ssbroker.testing import Faults, Simulation
from ssbroker.testing.__main__ import main


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", 30),
        ("loss", -0.1),
        ("duplication", float("nan")),
        ("reordering", "0.5"),
        ("corruption", True),
        ("one_way", 1.5),
        ("outage_share", None),
        ("crashes", 2),
        ("rollbacks", 1.01),
        ("delay", float("inf")),
        ("partition_seconds", -1),
        ("partitions", -4),
        ("outage_period", float("nan")),
        ("clock_jumps", 86_401),
    ],
)
def test_invalid_faults_are_named(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"^{name}: expected a number from 0 to (1|86,400), got "):
        Faults(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dialogs": 0}, "dialogs: expected an integer from 1 to 1000000, got 0"),
        ({"messages": -1}, "messages: expected an integer from 1 to 1000000, got -1"),
        ({"faulty_seconds": -1}, "faulty_seconds: expected a number from 0 to 2,592,000, got -1"),
        ({"faulty_seconds": float("nan")}, "faulty_seconds: expected a number from 0 to 2,592,000, got nan"),
        ({"sending_seconds": 46}, "sending_seconds: expected a number from 0 to 45, got 46"),
        ({"faults": {"loss": 0.3}}, "faults: expected Faults(...), got {'loss': 0.3}"),
        ({"settings": "strict"}, "settings: expected ProtocolSettings(...), got 'strict'"),
    ],
)
def test_invalid_simulation_arguments_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        Simulation(7, **given)
    assert str(refused.value) == message


@pytest.mark.parametrize("given", [["--seeds", "-3"], ["--messages", "-1"], ["--messages", "many"]])
def test_the_command_rejects_negative_counts(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """They printed that nothing was lost."""
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert "expected a non-negative integer" in capsys.readouterr().err


def test_the_command_prints_only_its_result() -> None:
    """The corrupted messages that it makes are not errors."""
    done = subprocess.run(
        [sys.executable, "-m", "ssbroker.testing", "--seeds", "3"], capture_output=True, text=True, check=True
    )
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)
