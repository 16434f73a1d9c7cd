"""A pickled, saved or scripted catalog equals the original, and every explanation can be printed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from ssbroker import Catalog, DdlError, Router
from tests.worlds.arrow import catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW

SEEDS = 300


def test_a_pickle_changes_nothing() -> None:
    for seed in range(SEEDS):
        catalog = catalog_of(seeded_world(seed, conversations=0)[0], text_guids=seed % 2 == 0)
        assert pickle.loads(pickle.dumps(catalog)) == catalog, seed


def test_a_saved_folder_changes_nothing(tmp_path: Path) -> None:
    for seed in range(SEEDS // 10):
        catalog = catalog_of(seeded_world(seed, conversations=0)[0])
        catalog.save(tmp_path / "net")
        assert Catalog.load(tmp_path / "net") == catalog, seed


@pytest.mark.filterwarnings("error")
def test_a_script_changes_nothing(tmp_path: Path) -> None:
    written = 0
    for seed in range(2 * SEEDS):
        catalog = catalog_of(seeded_world(seed, conversations=0)[0])
        try:
            catalog.save(tmp_path / "net.sql", now=NOW)
        except DdlError:
            continue
        written += 1
        assert Catalog.load(tmp_path / "net.sql", now=NOW) == catalog, seed
    assert written >= 5  # CREATE ROUTE rejects something in most worlds


@pytest.mark.parametrize("tie_break", ["hash", "first"])
def test_every_explanation_can_be_printed(tie_break: Any) -> None:
    for seed in range(SEEDS):
        world, conversations = seeded_world(seed, conversations=10)
        router = Router(catalog_of(world), tie_break=tie_break)
        for conversation in conversations:
            explanation = router.explain(
                conversation.to_service_name,
                to_broker_instance=conversation.to_broker_instance,
                database=conversation.database,
                is_initiator=conversation.is_initiator,
                conversation_id=conversation.conversation_id,
                now=NOW,
            )
            lines = str(explanation).splitlines()
            decision = explanation.decision
            assert all(line.isprintable() for line in lines), seed
            assert lines[-1].startswith(f"Decision: {decision['outcome']}"), seed
            assert lines[-1].endswith(f"{decision['reason']})."), seed
            assert ("What to do" in lines) == (decision["outcome"] in ("DELAYED", "DROPPED")), seed
