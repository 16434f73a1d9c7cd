"""A missing dependency is named when it is needed, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("apsw", "cryptography"):
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
import ssbroker
from ssbroker.cli import main

for call in (lambda: ssbroker.Instance.create(sys.argv[1], name="x"), lambda: ssbroker.Instance.open(sys.argv[1])):
    try:
        call()
    except ssbroker.MissingDependencyError as error:
        print(error)
sys.exit(main(["status", sys.argv[1]]))
"""


def test_the_extra_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    message = "an instance needs apsw and cryptography: pip install 'ssbroker[broker]'\n"
    assert done.stdout == 2 * message
    assert done.stderr == f"ssbroker: {message}"
    assert done.returncode == 2


STAR_IMPORT = """
import sys
from importlib.metadata import requires
from packaging.requirements import Requirement

extras = {Requirement(line).name.replace("-", "_") for line in requires("ssbroker") if "extra ==" in line}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in extras - {"packaging", "pyarrow"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from ssbroker import *
print(sorted(extras & {"apsw", "pyspark"}), Instance.__name__, Router.__name__, "spark" in globals())
"""


def test_all_public_names_can_be_imported_without_extras() -> None:
    done = subprocess.run([sys.executable, "-c", STAR_IMPORT], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("['apsw', 'pyspark'] Instance Router False\n", "")
