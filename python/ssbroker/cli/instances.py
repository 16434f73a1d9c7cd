"""The folder of an instance as an argument."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

FolderArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of an instance.")]
