"""The tests of the dialog protocol detect every planted bug."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from ssbroker.protocol.engine import DialogEngine
from tests.protocol import (
    test_acknowledgements,
    test_application_errors,
    test_dialog_security,
    test_receiver,
    test_sender,
)
from tests.protocol.planted import BUGS, dialog_security, receiver, sender
from tests.protocol.planted.planting import Bug
from tests.protocol.test_simulation import simulated, swept

EngineTest = Callable[[], object]

SLOW = (
    "test_memory",
    "test_fragments_too_scattered",
    "test_a_packed_object",
    "test_broker_errors",
    "test_every_single",
)
SEEDS = 12
PERIODS = (1, 2, 4, 7)

# Bugs, each with a seed whose simulation detects it soon.
DETECTED_BY_THE_SIMULATION: dict[Bug, int] = {
    receiver.acknowledgements_precede_storing: 10,
    receiver.duplicates_are_not_acknowledged: 1,
    receiver.gaps_are_acknowledged: 0,
    receiver.duplicates_are_received: 1,
    receiver.partial_messages_are_not_acknowledged: 1,
    receiver.out_of_order: 0,
    receiver.early_messages_are_not_stored: 14,
    receiver.rolled_back_rows_count_as_received: 0,
    receiver.stored_messages_are_not_read_back: 14,
    receiver.wrong_reassembly_slot: 2,
    dialog_security.digests_of_headers_are_not_compared: 2,
    dialog_security.digests_of_parts_are_not_compared: 23,
    dialog_security.headers_without_names: 21,
    sender.a_clock_set_back_delays_retries: 7,
    sender.acknowledged_fragments_are_ignored: 1,
    sender.acknowledgements_are_only_piggybacked: 0,
    sender.acknowledgements_beyond_this_run_are_ignored: 6,
    sender.gives_up_after_three_retries: 2,
    sender.never_sends_again: 0,
    sender.packing_forgets_messages_in_transit: 0,
}


def engine_tests() -> Iterator[EngineTest]:
    """All tests of the engine, quick ones first, and then the simulation."""
    slow: list[EngineTest] = []
    for module in (
        test_sender,
        test_receiver,
        test_acknowledgements,
        test_application_errors,
        test_dialog_security,
    ):
        for name, test in vars(module).items():
            if name.startswith("test_") and "engine" in inspect.signature(test).parameters:
                each = partial(test, DialogEngine)
                kinds = [partial(each, secured=True), partial(each, secured=False)] if "bit_flip" in name else [each]
                for kind in kinds:
                    # A test that lacks an argument would raise TypeError, and seem to detect every bug.
                    inspect.signature(kind).bind()
                if name.startswith(SLOW):
                    slow += kinds
                else:
                    yield from kinds
    yield from slow
    yield from (partial(_is_correct, swept, period) for period in PERIODS)
    yield from (partial(_is_correct, simulated, seed) for seed in range(SEEDS))


def _is_correct(run: Callable[..., object], number: int) -> None:
    figures = run(number, DialogEngine)
    assert figures.is_correct  # type: ignore[attr-defined]
    assert run is not swept or figures.seconds < 3600  # type: ignore[attr-defined]


def detects(engine_test: EngineTest) -> bool:
    """Returns whether a test fails or raises."""
    try:
        engine_test()
    except Exception:  # noqa: BLE001 - an engine that raises is caught too
        return True
    except pytest.fail.Exception:
        return True
    return False


@pytest.mark.rule(
    "P11", "P12", "P13", "P14", "P15", "P16", "P17", "P18", "P21", "P22", "P23", "P25", "P26", "P31", "P32", "R8"
)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: Bug) -> None:
    """A bug in any of these rules is detected; so are P18, P21 to P23, P25, P26, P31, P32 and R8."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        assert any(detects(engine_test) for engine_test in engine_tests()), bug.__doc__


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P16", "P17", "P18", "P21", "P32")
@pytest.mark.parametrize(
    ("bug", "seed"), DETECTED_BY_THE_SIMULATION.items(), ids=lambda item: getattr(item, "__name__", "")
)
def test_the_simulation_alone_detects_it(bug: Bug, seed: int) -> None:
    """Bugs that need a network, crash or clock fault are detected by the simulation; so are P18, P21 and P32."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        assert detects(partial(_is_correct, simulated, seed))


@pytest.mark.rule("P17")
def test_the_sweep_alone_detects_missing_jitter() -> None:
    """P17"""
    with pytest.MonkeyPatch.context() as patch:
        sender.no_jitter(patch)
        assert detects(partial(_is_correct, swept, 2))


def test_without_a_bug_all_tests_pass() -> None:
    assert not any(detects(engine_test) for engine_test in engine_tests())


def test_every_bug_has_a_description() -> None:
    assert len(BUGS) >= 50
    assert all(bug.__doc__ for bug in BUGS)
