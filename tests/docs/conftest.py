from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.interpreter import Interpreter

# Java is started by this, and not by the settings of the page that comes first: those would be every page's.
START_JAVA = """
from pyspark import SparkContext
SparkContext.setSystemProperty("spark.ui.showConsoleProgress", "false")
"""


class SparkRoom:
    """One process and one folder for all pages that use Spark, so that Java starts only once.

    Each page starts with an empty folder, without names and without a session.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.interpreter = Interpreter(folder)
        self.interpreter.block(START_JAVA)

    def clear(self) -> None:
        self.interpreter.turn_page()
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@pytest.fixture(scope="session")
def one_spark_room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRoom]:
    room = SparkRoom(tmp_path_factory.mktemp("spark-room"))
    yield room
    room.interpreter.close()


@pytest.fixture
def spark_room(one_spark_room: SparkRoom) -> SparkRoom:
    one_spark_room.clear()
    return one_spark_room
