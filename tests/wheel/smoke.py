"""Checks an installed ssbroker in an environment with only its requirements: the library, the command, and the error without PySpark."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import ssbroker
from ssbroker import _core


def library() -> None:
    """Checks that the library routes a batch with a router that was pickled."""
    router = pickle.loads(pickle.dumps(ssbroker.Router(ssbroker.Catalog.load("routes.sql"), tie_break="first")))
    waiting = {"to_service_name": ["//shop/Stock", "//shop/Nothing"], "to_broker_instance": pa.nulls(2, pa.string())}
    decisions = router.route(pa.table({"database": ["Sales", "Sales"], **waiting})).to_pydict()
    assert decisions["outcome"] == ["REMOTE", "DELAYED"], decisions
    assert decisions["next_hop_address"] == ["TCP://stock.example:4022", None], decisions


def spark_package() -> None:
    """Checks that without PySpark, the error of `ssbroker.spark` names what to install."""
    assert importlib.util.find_spec("pyspark") is None, "this environment must not have pyspark"
    assert importlib.util.find_spec("pyspark_ssbroker") is not None, "Spark would not find its format `ssbroker`"
    try:
        importlib.import_module("ssbroker.spark")
    except ImportError as error:
        assert "pip install 'ssbroker[local-spark]'" in str(error), error  # noqa: PT017 - pytest is not here
    else:
        raise AssertionError("ssbroker.spark imports without pyspark")


def command() -> None:
    """Checks that the command runs, and prints an error in one line; without its libraries, the error names what to install."""
    if importlib.util.find_spec("typer") is None:
        refused = subprocess.run(["ssbroker", "--version"], capture_output=True, text=True, check=False)
        needs = "ssbroker: the command line needs rich and typer: pip install 'ssbroker[cli]'\n"
        assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", needs), refused
        return
    ask = ["ssbroker", "explain", "routes.sql", "--from", "Sales", "--json", "--to-service"]
    answer = subprocess.run([*ask, "//shop/Stock"], capture_output=True, text=True, check=True).stdout
    assert json.loads(answer)["decision"]["outcome"] == "REMOTE", answer
    for wrong, named in ((["missing.sql", "--to-service", "x"], "missing.sql"), (["--nonsense"], "--nonsense")):
        refused = subprocess.run(["ssbroker", "explain", *wrong], capture_output=True, text=True, check=False)
        assert refused.returncode == 2, refused
        assert named in refused.stderr, refused
        assert "Traceback" not in refused.stderr, refused


def main() -> None:
    """Runs every check."""
    assert Path(ssbroker.__file__).is_relative_to(sys.prefix), ssbroker.__file__
    assert _core.build_profile == "release", _core.build_profile
    library()
    spark_package()
    command()
    print(f"ssbroker {ssbroker.__version__} works alone")


if __name__ == "__main__":
    main()
