"""The notebook of the examples does what it shows, when it is executed in a kernel as Jupyter does."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.guards.repository import ROOT

NOTEBOOK = ROOT / "examples" / "route_a_day" / "route_a_day.ipynb"


def shown(notebook: Any) -> list[list[Any]]:
    """Returns what each cell displays: its text and its HTML."""
    return [[output.get("data") or output.get("text") for output in cell.get("outputs", [])] for cell in notebook.cells]


def test_the_notebook_does_what_it_shows() -> None:
    recorded: Any = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    executed = deepcopy(recorded)
    NotebookClient(executed, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    assert shown(executed) == shown(recorded)
    assert sum(len(outputs) for outputs in shown(recorded)) > 5
