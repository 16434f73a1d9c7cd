"""Routing files on this machine: read, routed and written a piece at a time, by all cores."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ssbroker.catalog import Catalog
from ssbroker.cli.conform import common_schema
from ssbroker.cli.errors import writing
from ssbroker.cli.files import expand, open_sources
from ssbroker.cli.formats import Format, of_output
from ssbroker.cli.output import refuse_overwriting, replacing_file
from ssbroker.cli.pieces import Piece, Source
from ssbroker.cli.pipeline import in_order
from ssbroker.cli.progress import ProgressBar
from ssbroker.cli.tally import Tally, count
from ssbroker.cli.writers import Writer, open_writer
from ssbroker.exceptions import InputError, SchemaError
from ssbroker.routing import PendingRequest, Router, TieBreak

_UNDER_WAY_BYTES: Final = 64 << 20
_READ_THREADS_MAX: Final = 16


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be routed by what, and how."""

    catalog: Path
    """What to load the catalog from."""
    conversations: Sequence[str]
    """Files, folders and patterns."""
    output: Path
    """What to write."""
    format: Format | None
    """The format of the output, None where its suffix tells."""
    now: datetime
    """The moment to route for."""
    tie_break: TieBreak
    """How one of several equals is picked."""
    pending_request: PendingRequest
    """What a pending request for routing information does."""
    threads: int | None
    """How many threads route, None for one for each core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Routed:
    encoded: Any
    counted: dict[str, pa.Table]
    rows: int
    position: int


def route_files(job: Job, *, progress: bool | None) -> tuple[Tally, list[Path]]:
    """Routes files into one file, which appears whole or not at all.

    Args:
        job: What to do.
        progress: Whether to show a bar; None shows it where standard error is a terminal.

    Returns:
        The counts, and the files that were read.

    Raises:
        SsbrokerError: Something in the input is wrong, or the output cannot be written.
    """
    files = expand(job.conversations)
    kind = of_output(job.output, job.format)
    refuse_overwriting(job.output, inputs=files, catalog=job.catalog)
    threads = job.threads or _cores()
    pa.set_cpu_count(min(threads, _READ_THREADS_MAX))  # pyarrow reads ahead as much for each of its threads
    with replacing_file(job.output) as part:
        router = Router(
            Catalog.load(job.catalog, now=job.now), tie_break=job.tie_break, pending_request=job.pending_request
        )
        sources = open_sources(files, output=kind, threads=threads, progress=progress)
        schema = common_schema(sources)
        with writing(job.output):
            writer = open_writer(part, kind, schema)
        try:
            tally = _route(job, router, sources, writer, threads=threads, progress=progress)
            with writing(job.output):
                writer.close()
        except BaseException:
            with contextlib.suppress(Exception):  # it is removed anyway
                writer.close()
            raise
    return tally, files


def _route(
    job: Job, router: Router, sources: Sequence[Source], writer: Writer, *, threads: int, progress: bool | None
) -> Tally:
    def route(numbered: tuple[Piece, int]) -> _Routed:
        piece, position = numbered
        rows = piece.load()
        try:
            decisions = router.route(rows.columns, now=job.now)
        except (InputError, SchemaError) as error:
            raise _located(error, piece) from error
        with writing(job.output):
            encoded = writer.encode(rows, decisions)
        return _Routed(encoded=encoded, counted=count(decisions), rows=decisions.num_rows, position=position)

    tally = Tally()
    total = sum(source.file.stat().st_size for source in sources)
    routed = in_order(
        _pieces(sources),
        route,
        threads=1 if job.tie_break == "round_robin" else threads,  # turns are taken in the order of the rows
        weigh=lambda numbered: numbered[0].size * writer.growth,
        weight_max=_UNDER_WAY_BYTES,
    )
    with ProgressBar("Routing", total_bytes=total, shown=progress) as bar, contextlib.closing(routed):
        for result in routed:
            with writing(job.output):
                writer.write(result.encoded)
            tally.add(result.counted, rows=result.rows)
            bar.update(rows=tally.rows, position=result.position)
        bar.update(rows=tally.rows, position=total)
    return tally


def _pieces(sources: Sequence[Source]) -> Iterator[tuple[Piece, int]]:
    """The pieces of all files, each with how much of all files is read when it is done."""
    before = 0
    for source in sources:
        for piece in source.pieces():
            yield piece, before + piece.position
        before += source.file.stat().st_size


def _located(error: InputError | SchemaError, piece: Piece) -> InputError | SchemaError:
    """The same error, about the file and its rows instead of the piece."""
    message = str(error)
    located = type(error)(message)
    located.__dict__.update(error.__dict__)
    if isinstance(located, InputError) and located.row is not None:
        row = piece.first_row + located.row
        message = re.sub(rf"\brow {located.row}\b", f"row {row}", message, count=1)
        located.row = row
    located.args = (f"{piece.file}: {message}",)
    return located


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
