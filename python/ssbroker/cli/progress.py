"""The progress bar on standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column


class ProgressBar:
    """Shows rows, rows per second, bytes of the input and the remaining time.

    Args:
        title: The name of the work.
        total_bytes: The size of the input.
        shown: Whether to show the bar; None shows it if standard error is a terminal.
    """

    def __init__(self, title: str, *, total_bytes: int, shown: bool | None) -> None:
        console = Console(stderr=True, force_terminal=shown or None)
        self._progress = Progress(
            TextColumn(title, table_column=_no_wrap_column()),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TaskProgressColumn(table_column=_no_wrap_column()),
            DownloadColumn(binary_units=True, table_column=_no_wrap_column()),
            TextColumn("{task.fields[rows]:,} rows", table_column=_no_wrap_column()),
            TextColumn("{task.fields[speed]:,.0f} rows/s", table_column=_no_wrap_column()),
            TimeRemainingColumn(compact=True, table_column=_no_wrap_column()),
            console=console,
            disable=not (console.is_terminal if shown is None else shown),
            expand=True,
        )
        self._task = self._progress.add_task("", total=max(1, total_bytes), rows=0, speed=0.0)

    def update(self, *, rows: int, position: int) -> None:
        """Sets the total number of rows processed and the number of bytes of the input read."""
        seconds = self._progress.tasks[0].elapsed or 0.0
        self._progress.update(self._task, completed=position, rows=rows, speed=rows / seconds if seconds else 0.0)

    def __enter__(self) -> Self:
        if not self._progress.disable:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._progress.disable:  # rich before 15 prints an empty line even for a disabled bar
            self._progress.stop()


def _no_wrap_column() -> Column:
    return Column(no_wrap=True)
