"""The bar on standard error that tells how far the work is."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column


class ProgressBar:
    """Tells rows, rows a second, bytes of the input and the time that is left.

    Args:
        title: What is being done.
        total_bytes: The size of the input.
        shown: Whether to show it; None shows it where standard error is a terminal.

    Examples:
        >>> with ProgressBar("Routing", total_bytes=100, shown=False) as bar:
        ...     bar.update(rows=10, position=100)
    """

    def __init__(self, title: str, *, total_bytes: int, shown: bool | None) -> None:
        console = Console(stderr=True, force_terminal=shown or None)
        self._progress = Progress(
            TextColumn(title, table_column=_on_one_line()),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TaskProgressColumn(table_column=_on_one_line()),
            DownloadColumn(binary_units=True, table_column=_on_one_line()),
            TextColumn("{task.fields[rows]:,} rows", table_column=_on_one_line()),
            TextColumn("{task.fields[speed]:,.0f} rows/s", table_column=_on_one_line()),
            TimeRemainingColumn(compact=True, table_column=_on_one_line()),
            console=console,
            disable=not (console.is_terminal if shown is None else shown),
            expand=True,
        )
        self._task = self._progress.add_task("", total=max(1, total_bytes), rows=0, speed=0.0)

    def update(self, *, rows: int, position: int) -> None:
        """Tells how many rows are done in all, and up to which byte of the input."""
        seconds = self._progress.tasks[0].elapsed or 0.0
        self._progress.update(self._task, completed=position, rows=rows, speed=rows / seconds if seconds else 0.0)

    def __enter__(self) -> Self:
        if not self._progress.disable:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._progress.disable:  # where nothing is shown, rich before 15 would end it with an empty line
            self._progress.stop()


def _on_one_line() -> Column:
    return Column(no_wrap=True)
