"""`ssbroker reassemble`: reassembles files of fragments into a file of messages."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ssbroker import schemas
from ssbroker.cli import chunks, formats
from ssbroker.cli.chunks import Chunk, InputFile, all_pieces, without_rows
from ssbroker.cli.errors import located, reading, writing
from ssbroker.cli.formats import Format, of_output
from ssbroker.cli.options import (
    FormatOption,
    ProgressOption,
    QuietOption,
    SummaryAsJsonOption,
    ThreadsOption,
    load_keys,
    parse_count,
    parse_size,
)
from ssbroker.cli.pipeline import UNDER_WAY_BYTES, in_order, use_threads
from ssbroker.cli.progress import ProgressBar
from ssbroker.cli.readers import common_schema, conformed, expand, open_sources
from ssbroker.cli.writers import Result, refuse_overwriting, replacing_files, replacing_folder, without_dictionaries
from ssbroker.exceptions import InputError, MalformedDataError, OptionError, OutputError, SchemaError
from ssbroker.reassembly import Reassembler

if TYPE_CHECKING:
    from ssbroker.spark import SparkReassembly


pc: Any = pyarrow.compute  # its stubs do not know text and bytes with 64-bit offsets


@dataclass(kw_only=True)
class ReassembleCounts:
    """What came of fragments, counted.

    Examples:
        >>> tally = ReassembleCounts(rows=2)
        >>> tally.add_rejected(pa.record_batch({"reason": ["duplicate", "duplicate"]}))
        >>> tally.by_frequency()
        {'duplicate': 2}
    """

    rows: int = 0
    """How many fragments were read."""
    messages: int = 0
    """How many messages were written."""
    message_bytes: int = 0
    """How many bytes their bodies have."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many fragments were rejected, by reason."""
    incomplete: int = 0
    """Of how many messages fragments are missing."""
    waiting: int = 0
    """How many messages are whole and wait for others."""
    pending_bytes: int = 0
    """How many bytes of these two are there."""
    acknowledgements: int | None = None
    """How many directions are acknowledged; None where nobody asked."""

    def add_messages(self, batch: pa.RecordBatch) -> None:
        """Counts messages."""
        self.messages += batch.num_rows
        self.message_bytes += pc.sum(pc.binary_length(batch.column("message_body"))).as_py() or 0

    def add_rejected(self, batch: pa.RecordBatch) -> None:
        """Counts rejected fragments."""
        column: Any = batch.column("reason")
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        for pair in pc.value_counts(column).to_pylist():
            self.reasons[pair["values"]] += pair["counts"]

    def add_pending(self, batch: pa.RecordBatch) -> None:
        """Counts messages that were not written."""
        whole = batch.column("first_missing_fragment").null_count
        self.waiting += whole
        self.incomplete += batch.num_rows - whole
        self.pending_bytes += pc.sum(batch.column("received_bytes")).as_py() or 0

    def by_frequency(self) -> dict[str, int]:
        """The reasons, the most frequent first."""
        return dict(sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0])))


_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_LIMIT: Final = "limit_exceeded"


@dataclass(frozen=True, kw_only=True)
class ReassembleSummary:
    """What a run did."""

    fragments: Sequence[str]
    """The files that were read."""
    outputs: Mapping[str, str]
    """Where what was written, by the names of the options."""
    state: str | None
    """Where what is pending was left."""
    tally: ReassembleCounts
    """The counts."""
    seconds: float
    """How long it took."""

    @property
    def rows_per_second(self) -> int:
        """How many fragments a second."""
        return round(self.tally.rows / self.seconds) if self.seconds else 0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold."""
        tally = self.tally
        return {
            "fragments": list(self.fragments),
            "state": self.state,
            "rows": tally.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": self.rows_per_second,
            "messages": {
                "rows": tally.messages,
                "bytes": tally.message_bytes,
                "output": self.outputs["messages"],
            },
            "rejected": {
                "rows": tally.reasons.total(),
                "reasons": tally.by_frequency(),
                "output": self.outputs.get("rejected"),
            },
            "incomplete": {
                "rows": tally.incomplete + tally.waiting,
                "waiting": tally.waiting,
                "bytes": tally.pending_bytes,
                "output": self.outputs.get("incomplete"),
            },
            "acknowledgements": {
                "rows": tally.acknowledgements,
                "output": self.outputs.get("acknowledgements"),
            },
        }

    def print(self, console: Console) -> None:
        """Prints it."""
        if self.tally.reasons:
            console.print(self._table())
        for sentence in self._sentences():
            console.print(sentence, soft_wrap=True, markup=False, highlight=False)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title_justify="left")
        table.add_column("Rejected", min_width=36, overflow="fold")
        table.add_column("Fragments", justify="right", min_width=14)
        table.add_column("Share", justify="right", min_width=7)
        for reason, rows in self.tally.by_frequency().items():
            table.add_row(reason, f"{rows:,}", f"{rows / self.tally.rows:.1%}")
        table.add_row()
        return table

    def _sentences(self) -> list[str]:
        tally = self.tally
        sentences = []
        if tally.reasons:
            sentences.append(f"{counted(tally.reasons.total(), 'fragment')} rejected{self._where('rejected')}")
        if tally.reasons[_LIMIT]:
            sentences.append("limit_exceeded: --help tells the limits, which can be raised")
        if tally.incomplete or tally.waiting:
            kept = f"; kept in {self.state}" if self.state else ""
            sentences.append(f"{self._pending()}{self._where('incomplete')}{kept}")
        if tally.acknowledgements is not None:
            sentences.append(f"{counted(tally.acknowledgements, 'acknowledgement')}{self._where('acknowledgements')}")
        done = f"{counted(tally.messages, 'message')} ({in_units(tally.message_bytes)}) of {counted(tally.rows, 'fragment')}"
        speed = f"in {self.seconds:,.1f} s ({self.rows_per_second:,} rows/s)"
        return [*sentences, f"{done} reassembled {speed} to {self.outputs['messages']}"]

    def _pending(self) -> str:
        tally = self.tally
        size = in_units(tally.pending_bytes)
        if not tally.incomplete:
            return f"{counted(tally.waiting, 'message')} waiting ({size})"
        waiting = f" and {tally.waiting:,} waiting" if tally.waiting else ""
        return f"{counted(tally.incomplete, 'message')} incomplete{waiting} ({size})"

    def _where(self, name: str) -> str:
        return f", to {self.outputs[name]}" if name in self.outputs else f"; --{name} FILE writes which"


def counted(number: int, noun: str) -> str:
    """A number of things.

    Examples:
        >>> counted(1, "message"), counted(2000, "message")
        ('1 message', '2,000 messages')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_units(size: int) -> str:
    """A number of bytes for people.

    Examples:
        >>> in_units(100), in_units(3 << 19)
        ('100 B', '1.5 MiB')
    """
    scaled, unit = float(size), 0
    while scaled >= _STEP and unit < len(_UNITS) - 1:
        scaled, unit = scaled / _STEP, unit + 1
    return f"{scaled:.1f} {_UNITS[unit]}" if unit else f"{size} B"


_LIMITS: Any = {"rich_help_panel": "Limits: a size such as 256MiB, a count, or none"}
EXAMPLES = """[bold]Examples[/bold]

Whole messages from fragments in any order:

  ssbroker reassemble day/*.parquet -o messages.parquet

What was rejected, and what is incomplete, in files of their own:

  ssbroker reassemble in.parquet -o out.parquet --rejected no.csv --incomplete wait.csv

Day by day: what is incomplete today is kept for tomorrow:

  ssbroker reassemble today.parquet -o messages.parquet --state pending.bin

Signatures that are encrypted:

  ssbroker reassemble in.parquet -o out.parquet --session-keys keys.csv

The same on Spark, into a folder of Parquet:

  ssbroker reassemble --spark in/ -o out
"""


def reassemble(
    *,
    fragments: Annotated[
        list[str],
        typer.Argument(
            metavar="FRAGMENTS...",
            help="Files, folders and patterns. Parquet, CSV, JSON lines, Arrow IPC; all with the same columns.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="MESSAGES", help="The file to write; its suffix tells the format."),
    ],
    rejected: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write which fragments were rejected, and why.")
    ] = None,
    incomplete: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write which messages are incomplete, or wait for others.")
    ] = None,
    acknowledgements: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what the sender of each direction may be told.")
    ] = None,
    format: FormatOption = None,  # noqa: A002
    session_keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The keys that encrypt the signatures: conversation_id, session_key."),
    ] = None,
    session_key_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of the fragments that has the keys.")
    ] = None,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Write each message when it is whole; it waits for none before it.")
    ] = False,
    max_pending_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What all that is pending may take. 256MiB if left out.", **_LIMITS),
    ] = None,
    max_pending_messages: Annotated[
        str | None,
        typer.Option(metavar="COUNT", help="How many messages may be pending. 1048576 if left out.", **_LIMITS),
    ] = None,
    max_message_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The largest message. 1GiB if left out.", **_LIMITS)
    ] = None,
    max_fragments_per_message: Annotated[
        str | None,
        typer.Option(metavar="COUNT", help="The most fragments of a message. 1048576 if left out.", **_LIMITS),
    ] = None,
    max_sequence_distance: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            help="How far ahead of the first message that is missing a fragment may be. 1048576 if left out.",
            **_LIMITS,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Go on from this file if it is there; leave what is pending in it."),
    ] = None,
    threads: ThreadsOption = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Reassemble Parquet on Spark; the outputs are folders of Parquet.")
    ] = False,
    as_json: SummaryAsJsonOption = False,
    quiet: QuietOption = False,
    progress: ProgressOption = None,
) -> None:
    """Reassemble messages: put fragments together, check their signatures, and write each message once, in order.

    The output has the columns of the fragments without those that only fragments have. A fragment that is damaged, contradicts others,
    is there twice or exceeds a limit is rejected, and counted in the summary. All files appear whole or not at all.
    """
    if session_keys is not None and session_key_column is not None:
        raise OptionError("--session-keys and --session-key-column exclude each other")
    tables = {"messages": output, "rejected": rejected, "incomplete": incomplete, "acknowledgements": acknowledgements}
    limits = {
        "max_pending_bytes": (max_pending_bytes, parse_size),
        "max_pending_messages": (max_pending_messages, parse_count),
        "max_message_bytes": (max_message_bytes, parse_size),
        "max_fragments_per_message": (max_fragments_per_message, parse_count),
        "max_sequence_distance": (max_sequence_distance, parse_count),
    }
    options: dict[str, Any] = {
        name: parse(text, option=f"--{name.replace('_', '-')}")
        for name, (text, parse) in limits.items()
        if text is not None
    }
    job = ReassembleJob(
        fragments=fragments,
        tables={name: path for name, path in tables.items() if path is not None},
        format=format,
        options=options | ({"in_order": False} if any_order else {}),
        session_keys=session_keys,
        session_key_column=session_key_column,
        state=state,
        threads=threads,
    )
    begun = time.perf_counter()
    if spark:
        tally, files = reassemble_on_spark(job)
    else:
        tally, files = reassemble_files(job, progress=False if quiet and progress is None else progress)
    summary = ReassembleSummary(
        fragments=[str(file) for file in files],
        outputs={name: str(path) for name, path in job.tables.items()},
        state=None if state is None else str(state),
        tally=tally,
        seconds=time.perf_counter() - begun,
    )
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), indent=2, ensure_ascii=False))
    elif not quiet:
        summary.print(Console())


_DIRECTION: Final = ["conversation_id", "is_initiator"]
_PLACE: Final = "place"
_WAITING_MAX: Final = 200_000


class Acknowledged:
    """Keeps the latest acknowledgement of each direction, in memory that grows with the directions only."""

    def __init__(self) -> None:
        self._latest = schemas.ACKNOWLEDGEMENTS.empty_table()
        self._waiting: list[pa.Table] = []

    def add(self, acknowledgements: pa.Table) -> None:
        """Adds those of one push.

        Examples:
            >>> row = {"conversation_id": bytes(16), "is_initiator": True, "partial_sequence_number": None, "partial_fragments": None}
            >>> acknowledged = Acknowledged()
            >>> for number in (None, 0):
            ...     pushed = [row | {"acked_sequence_number": number}]
            ...     acknowledged.add(pa.Table.from_pylist(pushed, schema=schemas.ACKNOWLEDGEMENTS))
            >>> acknowledged.table(pending=schemas.PENDING.empty_table())["acked_sequence_number"].to_pylist()
            [0]
        """
        self._waiting.append(acknowledgements)
        if sum(table.num_rows for table in self._waiting) > max(_WAITING_MAX, self._latest.num_rows):
            self._sum_up()

    def table(self, *, pending: pa.Table) -> pa.Table:
        """One row for each direction, in the order in which they first came.

        What it tells of a message that is being assembled must still be so: a later push may have rejected the whole of it without
        another acknowledgement. Its sender would never send it again.

        Args:
            pending: What is incomplete at the end.

        Returns:
            The acknowledgements.
        """
        self._sum_up()
        numbers, fragments = self._latest["partial_sequence_number"], self._latest["partial_fragments"]
        still_so = self._still_so(pending)
        columns = [
            *(self._latest[name] for name in (*_DIRECTION, "acked_sequence_number")),
            pc.if_else(still_so, numbers, None),
            pc.if_else(still_so, fragments, pa.scalar(None, fragments.type)),
        ]
        return pa.Table.from_arrays(columns, schema=schemas.ACKNOWLEDGEMENTS)

    def _sum_up(self) -> None:
        table = pa.concat_tables([self._latest, *self._waiting]).combine_chunks()
        self._waiting = []
        numbered = table.select(_DIRECTION).append_column(_PLACE, pa.array(range(table.num_rows), pa.int64()))
        grouped = numbered.group_by(_DIRECTION, use_threads=False)  # so that the directions keep their order
        self._latest = table.take(grouped.aggregate([(_PLACE, "max")])[f"{_PLACE}_max"])

    def _still_so(self, pending: pa.Table) -> pa.Array[Any]:
        first: dict[tuple[bytes, bool], tuple[int, int]] = {}
        incomplete = pending.filter(pc.is_valid(pending["first_missing_fragment"]))
        for row in incomplete.select([*_DIRECTION, "message_sequence_number", "received_fragments"]).to_pylist():
            conversation, is_initiator, number, received = row.values()
            first.setdefault((conversation, is_initiator), (number, received))
        counts = pc.list_value_length(self._latest["partial_fragments"])
        told = self._latest.select([*_DIRECTION, "partial_sequence_number"]).append_column("count", counts)
        return pa.array([first.get((id_, to)) == (number, count) for id_, to, number, count in _rows(told)], pa.bool_())


def _rows(table: pa.Table) -> Any:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


MESSAGES: Final = "messages"
REJECTED: Final = "rejected"
INCOMPLETE: Final = "incomplete"
ACKNOWLEDGEMENTS: Final = "acknowledgements"
_REST_ROWS: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    piece: Chunk
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


def run_reassembly(
    reassembler: Reassembler,
    sources: Sequence[InputFile],
    schema: pa.Schema,
    results: Mapping[str, Result],
    *,
    threads: int,
    progress: bool | None,
) -> ReassembleCounts:
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

    def load(numbered: tuple[Chunk, int]) -> _Given:
        piece, position = numbered
        return _Given(piece=piece, position=position, columns=conformed(piece.load().columns, schema))

    def encode(out: _Out) -> _Out:
        return replace(out, encoded=results[out.name].encode(out.batch)) if out.name in results else out

    def weigh(out: _Out) -> int:
        return out.batch.nbytes * results[out.name].growth if out.name in results else 0

    acknowledged = Acknowledged() if ACKNOWLEDGEMENTS in results else None
    tally = ReassembleCounts(acknowledgements=None if acknowledged is None else 0)
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


def _write(out: _Out, results: Mapping[str, Result], tally: ReassembleCounts) -> None:
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


@dataclass(frozen=True, kw_only=True)
class ReassembleJob:
    """What is to be reassembled, and how."""

    fragments: Sequence[str]
    """Files, folders and patterns."""
    tables: Mapping[str, Path]
    """Where to write what, by the names of `reassemble_flow`; the messages at least."""
    format: Format | None
    """The format of all of them, None where the suffixes tell."""
    options: Mapping[str, Any]
    """The reassembler's options that were given, by their names there."""
    session_keys: Path | None
    """A file of session keys."""
    session_key_column: str | None
    """The column of the fragments that has them."""
    state: Path | None
    """What to go on from if it is there, and to leave what is pending in."""
    threads: int | None
    """How many threads read and write, None for one for each core."""


def reassemble_files(job: ReassembleJob, *, progress: bool | None) -> tuple[ReassembleCounts, list[Path]]:
    """Reassembles files; the tables and the state appear whole or not at all.

    Args:
        job: What to do.
        progress: Whether to show a bar; None shows it where standard error is a terminal.

    Returns:
        The counts, and the files that were read.

    Raises:
        SsbrokerError: Something in the input is wrong, or a result cannot be written.
    """
    files = expand(job.fragments)
    kinds = {name: of_output(path, job.format) for name, path in job.tables.items()}
    outputs = [*job.tables.values(), *([job.state] if job.state else [])]
    refuse_overwriting(outputs, inputs=[*files, *([job.session_keys] if job.session_keys else [])])
    threads = use_threads(job.threads)
    with replacing_files(outputs) as parts:  # the state is the last to change: until then the run can be repeated
        reassembler = _reassembler(job)
        wanted = chunks.fragments(session_key_column=job.session_key_column)
        sources = open_sources(files, wanted, lines=False, threads=threads, progress=progress)
        schema = common_schema(sources, wanted)
        columns = _columns(reassembler, schema, file=files[0])
        with contextlib.ExitStack() as stack:
            results = {
                name: stack.enter_context(Result(part, kinds[name], columns[name], output=job.tables[name]))
                for name, part in zip(job.tables, parts, strict=False)
            }
            tally = run_reassembly(reassembler, sources, schema, results, threads=threads, progress=progress)
        if job.state is not None:
            with writing(job.state):
                parts[-1].write_bytes(reassembler.checkpoint())
    return tally, files


def _reassembler(job: ReassembleJob) -> Reassembler:
    keys = job.session_key_column if job.session_keys is None else load_keys(job.session_keys)
    if job.state is None or not job.state.exists():
        return Reassembler(**job.options, session_keys=keys)
    if job.options:
        given = ", ".join(
            "--any-order" if name == "in_order" else f"--{name.replace('_', '-')}" for name in job.options
        )
        raise OptionError(f"{job.state}: holds its own limits and order; expected no {given}")
    with reading(job.state):
        state = job.state.read_bytes()
    try:
        return Reassembler.restore(state, session_keys=keys)
    except MalformedDataError as error:
        raise located(error, file=job.state) from error


def _columns(reassembler: Reassembler, schema: pa.Schema, *, file: Path) -> dict[str, pa.Schema]:
    """The columns of all tables. That the input has those that are needed is seen before anything of it is read."""
    try:
        messages = reassembler.push(without_rows(schema)).messages.schema
    except (InputError, SchemaError) as error:
        raise located(error, file=file) from error
    tables = {
        MESSAGES: messages,
        REJECTED: schemas.REJECTED,
        INCOMPLETE: schemas.PENDING,
        ACKNOWLEDGEMENTS: schemas.ACKNOWLEDGEMENTS,
    }
    return {name: without_dictionaries(table) for name, table in tables.items()}


_NOT_ON_SPARK: Final = ("max_pending_messages", "max_sequence_distance")


def reassemble_on_spark(job: ReassembleJob) -> tuple[ReassembleCounts, list[Path]]:
    """Reassembles files into folders of Parquet; each appears whole or not at all.

    Fragments are sorted by Spark first, so that memory is enough whatever there is.

    Args:
        job: What to do.

    Returns:
        The counts, and the files that were read.

    Raises:
        SsbrokerError: Something in the input is wrong, a result cannot be written, or PySpark is not there.
    """
    _check(job)
    files = expand(job.fragments)
    _check_files(files)
    refuse_overwriting([*job.tables.values()], inputs=[*files, *([job.session_keys] if job.session_keys else [])])
    wanted = chunks.fragments(session_key_column=job.session_key_column)
    common_schema(open_sources(files, wanted, lines=False, threads=1, progress=False), wanted)
    keys = job.session_key_column if job.session_keys is None else load_keys(job.session_keys)
    from ssbroker.spark import formats as spark_formats  # noqa: PLC0415 - only where Spark is wanted
    from ssbroker.spark import reassemble  # noqa: PLC0415

    with spark_formats.spark_errors_translated(), contextlib.ExitStack() as stack:
        parts = {name: stack.enter_context(replacing_folder(path)) for name, path in job.tables.items()}
        quiet = not sys.stderr.isatty()
        session = stack.enter_context(spark_formats.session(threads=job.threads, quiet=quiet))
        fragments = spark_formats.read(session, files, kind=Format.PARQUET)
        found = reassemble(fragments, strategy="sort", session_keys=keys, **job.options).persist()
        tables = {MESSAGES: found.messages, REJECTED: found.rejected, INCOMPLETE: found.incomplete}
        for name, part in parts.items():
            tables[name].write.parquet(str(part))
            if not part.is_dir():
                raise OutputError(
                    f"{job.tables[name]}: Spark wrote on another machine; the output has to be where both reach it"
                )
        tally = _counted(found, rows=fragments.count())
        found.unpersist()
    return tally, files


def _check(job: ReassembleJob) -> None:
    if job.state is not None or ACKNOWLEDGEMENTS in job.tables:
        raise OptionError("--spark leaves neither --state nor --acknowledgements")
    for name in _NOT_ON_SPARK:
        if name in job.options:
            raise OptionError(f"--spark has no limit --{name.replace('_', '-')}")
    for path in job.tables.values():
        if job.format not in (None, Format.PARQUET) or formats.by_suffix(path) not in (None, Format.PARQUET):
            raise OptionError(f"{path}: --spark writes folders of Parquet, no other format")


def _check_files(files: list[Path]) -> None:
    for file in files:
        with reading(file):
            kind = formats.of_input(file)
        if kind is not Format.PARQUET:
            raise OptionError(f"{file}: --spark reads fragments from Parquet alone")


def _counted(found: SparkReassembly, *, rows: int) -> ReassembleCounts:
    messages = _row(found.messages.selectExpr("count(*)", "coalesce(sum(length(message_body)), 0)"))
    pending = _row(
        found.incomplete.selectExpr("count(*)", "count(first_missing_fragment)", "coalesce(sum(received_bytes), 0)")
    )
    tally = ReassembleCounts(rows=rows, messages=messages[0], message_bytes=messages[1])
    tally.incomplete, tally.waiting, tally.pending_bytes = pending[1], pending[0] - pending[1], pending[2]
    for row in found.rejected.groupBy("reason").count().collect():
        tally.reasons[row["reason"]] = row["count"]
    return tally


def _row(one: Any) -> list[int]:
    return [int(value) for value in one.first()]
