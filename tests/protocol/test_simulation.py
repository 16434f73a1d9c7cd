"""The dialog protocol over a faulty network: 200 seeds, and outages of every period."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssbroker.protocol.settings import ProtocolSettings
from ssbroker.testing import Faults, Simulation, SimulationResult, StoredMessage, run_messages, run_seeds
from ssbroker.testing.__main__ import main
from ssbroker.testing.simulation import DRAIN_SECONDS_MAX, EngineFactory

SEEDS = 200
STEP = 10
DIALOGS, MESSAGES = 4, 8


def simulated(seed: int, engine: EngineFactory) -> SimulationResult:
    """Runs one seed."""
    return Simulation(seed, dialogs=DIALOGS, messages=MESSAGES, engine=engine).run()


def swept(period: int, engine: EngineFactory) -> SimulationResult:
    """Runs an outage of half of every period for an hour, with a dialog in both directions."""
    faults = Faults(outage_period=period)
    settings = ProtocolSettings(window_fragments=16)
    return Simulation(
        period,
        dialogs=1,
        messages=3,
        faults=faults,
        settings=settings,
        faulty_seconds=3600,
        sending_seconds=0,
        engine=engine,
    ).run()


@pytest.mark.rule("P11", "P16", "P17", "P18", "P12", "P13", "P14", "P15")
@pytest.mark.parametrize("first", range(0, SEEDS, STEP))
def test_every_message_arrives_once_in_order_and_unaltered(first: int) -> None:
    """Under loss, duplication, reordering, damage, partitions, crashes, rollbacks and clock changes; and P18.

    When the faults stop, every dialog drains within four minutes.
    """
    total = SimulationResult()
    for run in run_seeds(first, STEP, dialogs=DIALOGS, messages=MESSAGES):
        assert run.result.is_correct, (run.description, run.result.problems)
        total.add(run.result)
    assert total.messages == STEP * DIALOGS * MESSAGES * 2
    assert total.drained < DRAIN_SECONDS_MAX
    assert total.fragments_lost > 100  # faults did occur
    assert total.fragments_duplicated > 100
    assert total.fragments_delayed > 100
    assert total.fragments_corrupted > 20
    assert total.rejected > 20


@pytest.mark.rule("P17")
@pytest.mark.parametrize("first", [1, 31, 61, 91])
def test_periodic_outages_do_not_starve_a_dialog(first: int) -> None:
    """For periods from 1 to 120 s."""
    for period in range(first, first + 30):
        figures = swept(period, _machine())
        assert figures.is_correct, (period, figures.problems)
        assert figures.seconds < 3600, period


def _machine() -> EngineFactory:
    from ssbroker.protocol.engine import DialogEngine  # noqa: PLC0415 - beside the fixture of the same

    return DialogEngine


def test_a_seed_is_reproducible() -> None:
    one, other = (Simulation(11, dialogs=3, messages=5) for _ in range(2))
    assert str(one) == str(other)
    assert one.run() == other.run()


def test_a_network_without_faults() -> None:
    figures = Simulation(3, faults=Faults(), settings=ProtocolSettings()).run()
    assert figures.is_correct
    assert figures.fragments_lost == figures.fragments_duplicated == figures.rejected == 0


def test_many_dialogs() -> None:
    figures = Simulation(5, dialogs=60, messages=20).run()
    assert figures.is_correct
    assert figures.messages == 2_400
    assert [run.result.messages for run in run_messages(5, 1, dialogs=2, messages=3)] == [12]


def test_the_command_prints_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--first", "5", "--menus"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("seed 5: ")
    assert "288 messages: 0 lost, 0 duplicated, 0 out of order, 0 altered" in out
    assert "messages per second of CPU time" in out


def test_a_run_with_a_journal_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def output(*given: str) -> str:
        assert main([*given]) == 0
        return capsys.readouterr().out.partition("; drained")[0]

    at = ["--first", "5", "--journal", str(tmp_path / "journal")]
    output("--seeds", "2", *at)
    whole = (tmp_path / "journal").read_text()
    (tmp_path / "journal").write_text(whole[:-40])  # like that of a killed process
    assert output("--seeds", "3", *at) == output("--seeds", "3", "--first", "5")
    assert (tmp_path / "journal").read_text().startswith(whole)
    assert output("--seeds", "3", *at) == output("--seeds", "3", "--first", "5")


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("nonsense\n", "is not a journal of this run: its first line is 'nonsense', expected '{"),
        ("a letter without an end of line", "its first line is 'a letter without an end of line', expected '{"),
        (None, "line 2: expected the result of a seed, got {"),
    ],
)
def test_a_file_that_is_no_journal_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: str | None, message: str
) -> None:
    path = tmp_path / "journal"
    assert main(["--seeds", "0", "--journal", str(path)]) == 0
    text = kept or path.read_text() + '{"messages": 3, "happy": 4}\n'
    path.write_text(text)
    with pytest.raises(SystemExit):
        main(["--seeds", "1", "--journal", str(path)])
    assert message in capsys.readouterr().err
    assert path.read_text() == text


def test_an_incomplete_new_journal_is_restarted(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert main(["--seeds", "0", "--journal", str(path)]) == 0
    head = path.read_text()
    for end in (0, 5, len(head) - 1):
        path.write_text(head[:end])
        assert main(["--seeds", "0", "--journal", str(path)]) == 0
        assert path.read_text() == head


def test_a_journal_of_other_seeds_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "journal")
    assert main(["--seeds", "0", "--journal", path]) == 0
    with pytest.raises(SystemExit):
        main(["--seeds", "1", "--first", "4", "--journal", path])
    assert '"first": 4' in capsys.readouterr().err


def test_failures_are_detected() -> None:
    """The simulation detects lost, duplicated, reordered and altered messages."""
    sent = [("Order", b"%d" % number) for number in range(4)]
    received = [StoredMessage(number, b"%d" % number, "Order") for number in range(4)]
    for delivered, found in (
        (received, (0, 0, 0, 0)),
        (received[:3], (1, 0, 0, 0)),
        ([*received, received[1]], (0, 1, 0, 0)),
        ([received[1], received[0], *received[2:]], (0, 0, 2, 0)),
        ([*received[:3], StoredMessage(3, b"3", "Offer")], (1, 0, 0, 1)),
        ([*received[:3], StoredMessage(3, b"4", "Order")], (1, 0, 0, 1)),
    ):
        figures = SimulationResult()
        figures.compare(sent, delivered, what="A to B")
        assert (figures.lost, figures.duplicated, figures.out_of_order, figures.altered) == found
        assert figures.is_correct == (found == (0, 0, 0, 0))
        assert len(figures.problems) == (found != (0, 0, 0, 0))
