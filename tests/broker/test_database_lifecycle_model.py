"""Random histories of databases that are created, removed, copied, enabled and renamed, compared with a model (I1, I4 to I8)."""

from __future__ import annotations

import random
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError, BrokerWarning
from tests.broker.test_database_lifecycle import agrees

STEPS = 40
OPTIONS = ["ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"]


@dataclass(slots=True)
class ModelDatabase:
    """The model's knowledge of a database, or of a file attached to no instance."""

    guid: bytes
    is_enabled: bool
    marks: set[str]


class World:
    """An instance and its model."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self.instance = Instance.create(folder / "instance", name="x", random=rng, background=False)
        msdb = self.instance.msdb
        self.databases = {"msdb": ModelDatabase(msdb.service_broker_guid.bytes, True, set())}
        self.files: dict[Path, ModelDatabase] = {}
        self.names_used = 0

    def has_enabled_twin(self, name: str | None, guid: bytes) -> bool:
        return any(one.is_enabled and one.guid == guid for other, one in self.databases.items() if other != name)

    def pick(self) -> str | None:
        users = [name for name in self.databases if name != "msdb"]
        return self.rng.choice(users) if users else None

    def create(self) -> None:
        self.names_used += 1
        name = f"D{self.names_used}"
        database = self.instance.create_database(name)
        assert database.service_broker_guid.bytes not in {one.guid for one in self.databases.values()}
        self.databases[name] = ModelDatabase(database.service_broker_guid.bytes, True, set())

    def detach(self) -> None:
        name = self.pick()
        if name is not None:
            path = self.instance.database(name).path
            self.instance.detach_database(name)
            self.files[path] = self.databases.pop(name)

    def copy(self) -> None:
        if self.files:
            self.names_used += 1
            source = self.rng.choice(list(self.files))
            target = self.folder / f"copy{self.names_used}.sqlite"
            shutil.copy(source, target)
            model_database = self.files[source]
            self.files[target] = ModelDatabase(
                model_database.guid, model_database.is_enabled, set(model_database.marks)
            )

    def attach(self) -> None:
        if not self.files:
            return
        self.names_used += 1
        path, option = self.rng.choice(list(self.files)), self.rng.choice([None, *OPTIONS])
        model_database, name = self.files.pop(path), f"A{self.names_used}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BrokerWarning)
            database = self.instance.attach_database(name, path, option=option)  # type: ignore[arg-type]
        if option == "NEW_BROKER":
            model_database.guid, model_database.is_enabled = database.service_broker_guid.bytes, True
        elif option is not None:
            model_database.is_enabled = option != "DISABLE_BROKER"
        model_database.is_enabled = model_database.is_enabled and not self.has_enabled_twin(None, model_database.guid)
        self.databases[name] = model_database

    def set_broker(self) -> None:
        name, option = self.rng.choice(list(self.databases)), self.rng.choice(OPTIONS)
        model_database, database = self.databases[name], self.instance.database(name)
        if option in ("ENABLE_BROKER", "ERROR_BROKER_CONVERSATIONS") and self.has_enabled_twin(
            name, model_database.guid
        ):
            with pytest.raises(BrokerError) as refused:
                database.set_broker(option)  # type: ignore[arg-type]
            assert refused.value.number == 9772
            return
        database.set_broker(option)  # type: ignore[arg-type]
        if option == "NEW_BROKER":
            assert database.service_broker_guid.bytes != model_database.guid
            model_database.guid = database.service_broker_guid.bytes
        model_database.is_enabled = option != "DISABLE_BROKER"

    def rename(self) -> None:
        name = self.pick()
        if name is not None:
            self.names_used += 1
            self.instance.execute(f"ALTER DATABASE {name} MODIFY NAME = R{self.names_used}")
            self.databases[f"R{self.names_used}"] = self.databases.pop(name)

    def drop(self) -> None:
        name = self.pick()
        if name is not None:
            self.instance.drop_database(name)
            del self.databases[name]

    def mark(self) -> None:
        name = self.rng.choice(list(self.databases))
        self.names_used += 1
        self.instance.database(name).create_queue(f"Q{self.names_used}")
        self.databases[name].marks.add(f"Q{self.names_used}")

    def reopen(self) -> None:
        self.instance.close()
        self.instance = Instance.open(self.folder / "instance", random=self.rng, background=False)

    def check(self) -> None:
        found = {
            one.name: ModelDatabase(
                one.service_broker_guid.bytes,
                one.is_broker_enabled,
                {name for _, name in database_context(one).objects().queues},
            )
            for one in self.instance.databases
        }
        assert found == self.databases
        assert agrees(self.instance)


@pytest.mark.rule("I7", "I8", "I1", "I4", "I5", "I6")
@pytest.mark.parametrize("seed", range(12))
def test_histories_of_databases(tmp_path: Path, seed: int) -> None:
    """Ids, states and contents equal the model's after every step and after reopening."""
    world = World(tmp_path, random.Random(seed))
    steps = [
        world.create,
        world.mark,
        world.detach,
        world.copy,
        world.attach,
        world.set_broker,
        world.rename,
        world.drop,
    ]
    for _ in range(STEPS):
        step = world.rng.choices([*steps, world.reopen], weights=[4, 2, 3, 3, 6, 5, 1, 1, 1])[0]
        step()
        world.check()
    world.instance.close()
