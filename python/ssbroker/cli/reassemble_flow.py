"""The flow of `ssbroker reassemble`: pieces of files through a reassembler into tables, in bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ssbroker.cli.acknowledged import Acknowledged
from ssbroker.cli.conform import conformed
from ssbroker.cli.errors import located
from ssbroker.cli.pieces import Piece, Source, all_pieces
from ssbroker.cli.pipeline import UNDER_WAY_BYTES, in_order
from ssbroker.cli.progress import ProgressBar
from ssbroker.cli.reassemble_tally import Tally
from ssbroker.cli.results import Result
from ssbroker.exceptions import InputError, SchemaError
from ssbroker.reassembler import Reassembler

MESSAGES: Final = "messages"
REJECTED: Final = "rejected"
INCOMPLETE: Final = "incomplete"
ACKNOWLEDGEMENTS: Final = "acknowledgements"
_REST_ROWS: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    piece: Piece
    position: int
    columns: pa.RecordBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class _Out:
    """A batch of one of the tables; or, without a name, that `rows` more are read, up to `position`."""

    name: str = ""
    batch: Any = None
    encoded: Any = None
    rows: int = 0
    position: int = 0


def reassemble(
    reassembler: Reassembler,
    sources: Sequence[Source],
    schema: pa.Schema,
    results: Mapping[str, Result],
    *,
    threads: int,
    progress: bool | None,
) -> Tally:
    """Reassembles all that the sources have, and writes the tables that are wanted.

    Some threads read, one puts together, some bring what comes out into its form; it is written in order.

    Args:
        reassembler: What puts together.
        sources: The fragments.
        schema: The columns that they have in common.
        results: The tables that are wanted, by name.
        threads: How many threads read, and how many encode.
        progress: Whether to show a bar; None shows it where standard error is a terminal.

    Returns:
        The counts.

    Raises:
        SsbrokerError: Something in the input is wrong, or a table cannot be written.
    """

    def load(numbered: tuple[Piece, int]) -> _Given:
        piece, position = numbered
        return _Given(piece=piece, position=position, columns=conformed(piece.load().columns, schema))

    def encode(out: _Out) -> _Out:
        return replace(out, encoded=results[out.name].encode(out.batch)) if out.name in results else out

    def weigh(out: _Out) -> int:
        return out.batch.nbytes * results[out.name].growth if out.name in results else 0

    acknowledged = Acknowledged() if ACKNOWLEDGEMENTS in results else None
    tally = Tally(acknowledgements=None if acknowledged is None else 0)
    loaded = in_order(
        all_pieces(sources),
        load,
        threads=threads,
        weigh=lambda numbered: numbered[0].size,
        weight_max=UNDER_WAY_BYTES,
    )
    pushed = _pushed(reassembler, loaded, acknowledged)
    encoded = in_order(pushed, encode, threads=threads, weigh=weigh, weight_max=UNDER_WAY_BYTES)
    total = sum(source.file.stat().st_size for source in sources)
    with (
        ProgressBar("Reassembling", total_bytes=total, shown=progress) as bar,
        contextlib.closing(loaded),
        contextlib.closing(pushed),
        contextlib.closing(encoded),
    ):
        for out in encoded:
            _write(out, results, tally)
            bar.update(rows=tally.rows, position=out.position)
        bar.update(rows=tally.rows, position=total)
    for out in _rest(reassembler, acknowledged):
        _write(encode(out), results, tally)
    return tally


def _pushed(reassembler: Reassembler, loaded: Iterator[_Given], acknowledged: Acknowledged | None) -> Generator[_Out]:
    before = 0
    for given in loaded:
        try:
            found = reassembler.push(given.columns)
        except (InputError, SchemaError) as error:
            raise located(error, file=given.piece.file, row_of=given.piece.row_of) from error
        if acknowledged is not None:
            acknowledged.add(found.acknowledgements)
        for name, table in ((MESSAGES, found.messages), (REJECTED, found.rejected)):
            for batch in table.to_batches():
                yield _Out(name=name, batch=batch, position=before)
        before = given.position
        yield _Out(rows=given.columns.num_rows, position=before)


def _rest(reassembler: Reassembler, acknowledged: Acknowledged | None) -> Iterator[_Out]:
    """What can be told only at the end."""
    pending = reassembler.pending()
    for batch in pending.to_batches(max_chunksize=_REST_ROWS):
        yield _Out(name=INCOMPLETE, batch=batch)
    if acknowledged is not None:
        for batch in acknowledged.table(pending=pending).to_batches(max_chunksize=_REST_ROWS):
            yield _Out(name=ACKNOWLEDGEMENTS, batch=batch)


def _write(out: _Out, results: Mapping[str, Result], tally: Tally) -> None:
    if out.name in results and out.batch.num_rows:
        results[out.name].write(out.encoded)
    tally.rows += out.rows
    if out.name == MESSAGES:
        tally.add_messages(out.batch)
    elif out.name == REJECTED:
        tally.add_rejected(out.batch)
    elif out.name == INCOMPLETE:
        tally.add_pending(out.batch)
    elif out.name == ACKNOWLEDGEMENTS:
        tally.acknowledgements = (tally.acknowledgements or 0) + out.batch.num_rows
