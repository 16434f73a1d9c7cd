"""Routing files on this machine: read, routed and written a piece at a time, by all cores."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from ssbroker import schemas
from ssbroker.catalog import Catalog
from ssbroker.cli.conform import common_schema, conformed
from ssbroker.cli.errors import located
from ssbroker.cli.files import expand, open_sources
from ssbroker.cli.formats import Format, of_output
from ssbroker.cli.intake import CONVERSATIONS
from ssbroker.cli.output import refuse_overwriting, replacing_files
from ssbroker.cli.pieces import Piece, Source, all_pieces
from ssbroker.cli.pipeline import UNDER_WAY_BYTES, in_order, use_threads
from ssbroker.cli.progress import ProgressBar
from ssbroker.cli.results import Result
from ssbroker.cli.route_tally import Tally, count
from ssbroker.cli.writers import without_dictionaries
from ssbroker.exceptions import InputError, SchemaError
from ssbroker.routing import PendingRequest, Router, TieBreak


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
    refuse_overwriting([job.output], inputs=files, catalogs=[job.catalog])
    threads = use_threads(job.threads)
    with replacing_files([job.output]) as (part,):
        router = Router(
            Catalog.load(job.catalog, now=job.now), tie_break=job.tie_break, pending_request=job.pending_request
        )
        lines = kind is Format.JSONL
        sources = open_sources(files, CONVERSATIONS, lines=lines, threads=threads, progress=progress)
        schema = common_schema(sources, CONVERSATIONS)
        written = pa.schema([*schema, *without_dictionaries(schemas.DECISIONS)])
        with Result(part, kind, written, output=job.output) as result:
            tally = _route(job, router, sources, schema, result, threads=threads, progress=progress)
    return tally, files


def _route(
    job: Job,
    router: Router,
    sources: Sequence[Source],
    schema: pa.Schema,
    result: Result,
    *,
    threads: int,
    progress: bool | None,
) -> Tally:
    def route(numbered: tuple[Piece, int]) -> _Routed:
        piece, position = numbered
        rows = piece.load()
        try:
            decisions = router.route(rows.columns, now=job.now)
        except (InputError, SchemaError) as error:
            raise located(error, file=piece.file, row_of=piece.row_of) from error
        if rows.lines is None:
            encoded = result.encode(_side_by_side(conformed(rows.columns, schema), decisions))
        else:
            encoded = result.encode(decisions, rows.lines)
        return _Routed(encoded=encoded, counted=count(decisions), rows=decisions.num_rows, position=position)

    tally = Tally()
    total = sum(source.file.stat().st_size for source in sources)
    routed = in_order(
        all_pieces(sources),
        route,
        threads=1 if job.tie_break == "round_robin" else threads,  # turns are taken in the order of the rows
        weigh=lambda numbered: numbered[0].size * result.growth,
        weight_max=UNDER_WAY_BYTES,
    )
    with ProgressBar("Routing", total_bytes=total, shown=progress) as bar, contextlib.closing(routed):
        for piece in routed:
            result.write(piece.encoded)
            tally.add(piece.counted, rows=piece.rows)
            bar.update(rows=tally.rows, position=piece.position)
        bar.update(rows=tally.rows, position=total)
    return tally


def _side_by_side(columns: pa.RecordBatch, decisions: pa.RecordBatch) -> pa.RecordBatch:
    names = [*columns.schema.names, *decisions.schema.names]
    return pa.RecordBatch.from_arrays([*columns.columns, *decisions.columns], names=names)
