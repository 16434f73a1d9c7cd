"""A damaged script is either rejected with a line number or executed as written."""

from __future__ import annotations

import random
import warnings
from contextlib import suppress

import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.ddl.lexer import ScriptSource, batches
from ssbroker.ddl.parser import parse
from ssbroker.exceptions import DdlError, DdlWarning
from tests.broker.test_database_lifecycle import agrees
from tests.broker.test_scripts import SCRIPT

WORDS = SCRIPT.split()


def damaged(rng: random.Random) -> str:
    """Returns the script with some words lost, duplicated, exchanged or truncated."""
    words = list(WORDS)
    for _ in range(rng.randint(1, 4)):
        at, other = rng.randrange(len(words)), rng.randrange(len(words))
        what = rng.randrange(4)
        if what == 0:
            del words[at]
        elif what == 1:
            words.insert(at, words[other])
        elif what == 2:
            words[at], words[other] = words[other], words[at]
        else:
            words[at] = words[at][: rng.randint(0, len(words[at]))]
    return "\n".join(words)


@pytest.mark.parametrize("seed", range(20))
def test_an_unreadable_script_raises_a_ddl_error(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        source = ScriptSource(damaged(rng), "x.sql")
        with suppress(DdlError):
            for batch in batches(source):
                parse(source, batch)


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_script_leaves_the_instance_consistent(instance: Instance, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        before = {one.name: database_context(one).objects() for one in instance.databases}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DdlWarning)
            try:
                instance.execute(damaged(rng).replace("GO", ""))  # one batch
            except DdlError:
                assert {one.name: database_context(one).objects() for one in instance.databases} == before
        assert agrees(instance)
        with suppress(DdlError):
            instance.execute("DROP DATABASE Sales")
