"""`ssbroker reassemble`: reassembles files of fragments into messages and prints a summary."""

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
from rich.console import Console

from ssbroker import schemas
from ssbroker._arrow import null_where
from ssbroker._text import count_of
from ssbroker.cli.chunks import (
    IN_FLIGHT_BYTES_MAX,
    UNMERGED_ROWS_MAX,
    Chunk,
    InputFile,
    all_chunks,
    configure_threads,
    empty_batch,
    ordered_map,
    total_bytes,
)
from ssbroker.cli.errors import error_in_file, reading, writing
from ssbroker.cli.file_formats import Format, format_by_suffix, input_format, output_format
from ssbroker.cli.hive_partitions import refuse_partitions
from ssbroker.cli.input_columns import fragment_columns
from ssbroker.cli.memory import memory_bytes
from ssbroker.cli.options import (
    FormatOption,
    ProgressOption,
    QuietOption,
    SummaryAsJsonOption,
    ThreadsOption,
    parse_count,
    parse_size,
)
from ssbroker.cli.readers import common_schema, conform, expand_patterns, open_inputs
from ssbroker.cli.session_keys import load_session_keys
from ssbroker.cli.terminal import ProgressBar, print_prose, share_table
from ssbroker.cli.writers import OutputFile, refuse_overwriting, replacing_files, replacing_folder, without_dictionaries
from ssbroker.exceptions import InputError, MalformedDataError, OptionError, OutputError, SchemaError
from ssbroker.reassembly import Reassembler

if TYPE_CHECKING:
    from ssbroker.spark import SparkReassembly


pc: Any = pyarrow.compute  # the stubs do not know text and bytes with 64-bit offsets


@dataclass(kw_only=True)
class ReassembleCounts:
    """The counts of a run."""

    rows: int = 0
    """The number of fragments read."""
    messages: int = 0
    """The number of messages written."""
    message_bytes: int = 0
    """The total size of their bodies."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The number of rejected fragments by reason."""
    incomplete: int = 0
    """The number of messages with missing fragments."""
    waiting: int = 0
    """The number of complete messages that wait for earlier ones."""
    blocked: int = 0
    """The number of waiting messages for whose next number the input has no fragment."""
    pending_bytes: int = 0
    """The bytes received of incomplete and waiting messages."""
    acknowledgements: int | None = None
    """The number of acknowledged directions; None if acknowledgements are not written."""

    def add_messages(self, batch: pa.RecordBatch) -> None:
        """Counts written messages."""
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
        """Counts messages that are incomplete or wait."""
        complete = batch.column("first_missing_fragment").null_count
        self.waiting += complete
        self.incomplete += batch.num_rows - complete
        self.pending_bytes += pc.sum(batch.column("received_bytes")).as_py() or 0

    def add_blocked(self, pending: pa.Table) -> None:
        """Counts the complete messages of directions in which even the next message has no fragment."""
        is_next = pc.is_null(pending["waits_for_sequence_number"])
        is_complete = pc.is_null(pending["first_missing_fragment"])
        marked = pending.select(_DIRECTION).append_column("next", is_next).append_column("complete", is_complete)
        directions = marked.group_by(_DIRECTION).aggregate([("next", "any"), ("complete", "sum")])
        self.blocked = pc.sum(directions.filter(pc.invert(directions["next_any"]))["complete_sum"]).as_py() or 0

    def by_frequency(self) -> dict[str, int]:
        """Returns the rejection reasons, the most frequent first."""
        return dict(sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0])))


_DIRECTION: Final = ["conversation_id", "is_initiator"]
_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT_FACTOR: Final = 1024
_LIMIT_REASON: Final = "limit_exceeded"


@dataclass(frozen=True, kw_only=True)
class ReassembleSummary:
    """The summary of a run."""

    fragments: Sequence[str]
    """The input files."""
    outputs: Mapping[str, str]
    """The output paths by table name."""
    state: str | None
    """The state file."""
    counts: ReassembleCounts
    seconds: float
    """The duration of the run."""

    @property
    def rows_per_second(self) -> int:
        """The fragments processed per second."""
        return round(self.counts.rows / self.seconds) if self.seconds else 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary as values for JSON."""
        counts = self.counts
        return {
            "fragments": list(self.fragments),
            "state": self.state,
            "rows": counts.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": self.rows_per_second,
            "messages": {
                "rows": counts.messages,
                "bytes": counts.message_bytes,
                "output": self.outputs["messages"],
            },
            "rejected": {
                "rows": counts.reasons.total(),
                "reasons": counts.by_frequency(),
                "output": self.outputs.get("rejected"),
            },
            "incomplete": {
                "rows": counts.incomplete + counts.waiting,
                "waiting": counts.waiting,
                "bytes": counts.pending_bytes,
                "output": self.outputs.get("incomplete"),
            },
            "acknowledgements": {
                "rows": counts.acknowledgements,
                "output": self.outputs.get("acknowledgements"),
            },
        }

    def print(self, console: Console) -> None:
        """Prints the summary."""
        if self.counts.reasons:
            table = share_table("Rejected", "Fragments")
            for reason, rows in self.counts.by_frequency().items():
                table.add_row(reason, f"{rows:,}", f"{rows / self.counts.rows:.1%}")
            console.print(table)
            console.print()
        for sentence in self._sentences():
            print_prose(console, sentence)

    def _sentences(self) -> list[str]:
        counts = self.counts
        sentences = []
        if counts.reasons:
            sentences.append(f"{count_of(counts.reasons.total(), 'fragment')} rejected{self._destination('rejected')}")
        if counts.incomplete or counts.waiting:
            saved = f"; saved in {self.state}" if self.state else ""
            sentences.append(f"{self._pending()}{self._destination('incomplete')}{saved}")
        if counts.acknowledgements is not None:
            sentences.append(
                f"{count_of(counts.acknowledgements, 'acknowledgement')}{self._destination('acknowledgements')}"
            )
        result = f"{count_of(counts.messages, 'message')} ({format_bytes(counts.message_bytes)}) of {count_of(counts.rows, 'fragment')}"
        speed = f"in {self.seconds:,.1f} s ({self.rows_per_second:,} rows/s)"
        return [*sentences, f"{result} reassembled {speed} to {self.outputs['messages']}"]

    def _pending(self) -> str:
        counts = self.counts
        size = format_bytes(counts.pending_bytes)
        if not counts.incomplete:
            return f"{count_of(counts.waiting, 'message')} waiting ({size})"
        waiting = f" and {counts.waiting:,} waiting" if counts.waiting else ""
        return f"{count_of(counts.incomplete, 'message')} incomplete{waiting} ({size})"

    def _destination(self, name: str) -> str:
        return f", written to {self.outputs[name]}" if name in self.outputs else f"; --{name} FILE lists them"


def format_bytes(size: int) -> str:
    """Formats a number of bytes with a binary unit.

    Examples:
        >>> format_bytes(100), format_bytes(3 << 19)
        ('100 B', '1.5 MiB')
    """
    scaled, unit = float(size), 0
    while scaled >= _UNIT_FACTOR and unit < len(_SIZE_UNITS) - 1:
        scaled, unit = scaled / _UNIT_FACTOR, unit + 1
    return f"{scaled:.1f} {_SIZE_UNITS[unit]}" if unit else f"{size} B"


_LIMIT_OPTION: Any = {"rich_help_panel": "Limits: a SIZE such as 256MiB, a COUNT, or none"}
EXAMPLES = """Examples:

Reassemble messages from fragments in any order:

  ssbroker reassemble day/*.parquet -o messages.parquet

Also list rejected fragments and incomplete messages:

  ssbroker reassemble in.csv -o out.csv --rejected no.csv --incomplete wait.csv

Continue day by day, with incomplete messages kept in between:

  ssbroker reassemble today.parquet -o messages.parquet --state pending.bin

Verify encrypted signatures:

  ssbroker reassemble in.parquet -o out.parquet --session-keys keys.csv

Reassemble on Spark, into a folder of Parquet files:

  ssbroker reassemble --spark in/ -o out
"""


def reassemble(
    *,
    fragments: Annotated[
        list[str],
        typer.Argument(
            metavar="FRAGMENTS",
            help="Fragments: files, folders or patterns, in Parquet, CSV, JSON lines or Arrow IPC, all with the same columns.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="MESSAGES",
            help="Output file. Its suffix determines the format, unless --format is given.",
        ),
    ],
    rejected: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the rejected fragments with the reason.")
    ] = None,
    incomplete: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the messages that are incomplete or wait for earlier ones."),
    ] = None,
    acknowledgements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write the acknowledgement to send for each direction of a conversation."
        ),
    ] = None,
    format: FormatOption = None,  # noqa: A002
    session_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the keys that encrypt the signatures, with the columns conversation_id and session_key.",
        ),
    ] = None,
    session_key_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the fragments with the keys.")
    ] = None,
    any_order: Annotated[
        bool,
        typer.Option("--any-order", help="Write each message when it is complete, without waiting for earlier ones."),
    ] = False,
    max_pending_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Maximum memory for pending messages, in bytes or with a unit; half of it is for conversations without a complete message. Default: a quarter of the memory of the machine or container, at least 256MiB.",
            **_LIMIT_OPTION,
        ),
    ] = None,
    max_pending_messages: Annotated[
        str | None,
        typer.Option(metavar="COUNT", help="Maximum number of pending messages. Default: none.", **_LIMIT_OPTION),
    ] = None,
    max_message_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Maximum size of a message, in bytes or with a unit. Default: 1GiB.", **_LIMIT_OPTION
        ),
    ] = None,
    max_fragments_per_message: Annotated[
        str | None,
        typer.Option(metavar="COUNT", help="Maximum number of fragments of a message. Default: none.", **_LIMIT_OPTION),
    ] = None,
    max_sequence_distance: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            help="Maximum distance in sequence numbers from the first missing message. Default: none.",
            **_LIMIT_OPTION,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Continue from this file if it exists, and save pending messages to it."),
    ] = None,
    threads: ThreadsOption = None,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Reassemble Parquet files on Spark. The outputs are folders of Parquet files."),
    ] = False,
    as_json: SummaryAsJsonOption = False,
    quiet: QuietOption = False,
    progress: ProgressOption = None,
) -> None:
    """Reassemble messages: verify their signatures, and write each complete message once, in order.

    The output has the columns of the fragments except those that describe a fragment. Fragments that are damaged, conflict with others, are duplicates or exceed a limit are rejected and counted in the summary. Existing outputs are replaced only when all new ones are complete.

    Exit status: 0 if no fragment exceeded a limit, 1 if any did, 2 if an option or an input is invalid.
    """
    if session_keys is not None and session_key_column is not None:
        raise OptionError("--session-keys and --session-key-column cannot be used together: specify one of them")
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
    started_at, is_continued = time.perf_counter(), state is not None and state.exists()
    if spark:
        counts, files = reassemble_on_spark(job)
    else:
        counts, files = reassemble_files(job, progress=False if quiet and progress is None else progress)
    summary = ReassembleSummary(
        fragments=[str(file) for file in files],
        outputs={name: str(path) for name, path in job.tables.items()},
        state=None if state is None else str(state),
        counts=counts,
        seconds=time.perf_counter() - started_at,
    )
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), indent=2, ensure_ascii=False))
    elif not quiet:
        summary.print(Console())
    exceeded = counts.reasons[_LIMIT_REASON]
    if counts.blocked and state is None and not quiet and not exceeded:
        _warn_of_blocked(counts.blocked, on_spark=spark)
    if exceeded:
        if not quiet:
            given = {name: text for name, (text, _) in limits.items() if text is not None}
            _warn_of_limits(exceeded, _limit_advice(given, state=state if is_continued else None, on_spark=spark))
        raise typer.Exit(1)


def _warn_of_limits(fragments: int, advice: str) -> None:
    typer.echo(f"ssbroker: warning: {count_of(fragments, 'fragment')} exceeded a limit; {advice}", err=True)


def _limit_advice(given: Mapping[str, str], *, state: Path | None, on_spark: bool) -> str:
    """Says which limit to raise, given the limits of the command line, and the state from which the run continued.

    Examples:
        >>> _limit_advice({"max_message_bytes": "1MiB", "max_pending_bytes": "1GiB"}, state=None, on_spark=False)
        'raise --max-pending-bytes (now 1GiB) or --max-message-bytes (now 1MiB)'
    """
    if state is not None:
        return f"{state} keeps the limits of its first run: run again without it, with a larger --max-pending-bytes"
    names = dict.fromkeys(("max_pending_bytes", *given, *(("max_message_bytes",) if on_spark else ())))
    values = {"max_pending_bytes": "" if on_spark else format_bytes(_default_pending_bytes()), **given}
    options = [
        f"--{name.replace('_', '-')}" + (f" (now {values[name]})" if values.get(name) else "")
        for name in names
        if values.get(name, "").lower() != "none"
    ]
    return f"raise {' or '.join(options) or '--max-message-bytes'}"


def _warn_of_blocked(messages: int, *, on_spark: bool) -> None:
    verb = "waits" if messages == 1 else "wait"
    state = "--state FILE (without --spark)" if on_spark else "--state FILE"
    typer.echo(
        f"ssbroker: warning: {count_of(messages, 'complete message')} {verb} for numbers that are not in the input, because each direction starts at 0; "
        f"to continue earlier runs, use {state} in all of them, or --any-order",
        err=True,
    )


_POSITION: Final = "position"


class LatestAcknowledgements:
    """The latest acknowledgement of each direction; memory grows only with the number of directions."""

    def __init__(self) -> None:
        self._latest = schemas.ACKNOWLEDGEMENTS.empty_table()
        self._unmerged: list[pa.Table] = []

    def add(self, acknowledgements: pa.Table) -> None:
        """Adds the acknowledgements of one push."""
        self._unmerged.append(acknowledgements)
        if sum(table.num_rows for table in self._unmerged) > max(UNMERGED_ROWS_MAX, self._latest.num_rows):
            self._merge()

    def table(self, *, pending: pa.Table) -> pa.Table:
        """Returns one row for each direction, in the order in which the directions appeared.

        The acknowledgement of a partial message is removed if the message is no longer pending as described: a later push may have rejected all
        of it, and the sender would never send it again.
        """
        self._merge()
        numbers, fragments = self._latest["partial_sequence_number"], self._latest["partial_fragments"]
        is_valid = self._is_still_valid(pending)
        columns = [
            *(self._latest[name] for name in (*_DIRECTION, "acked_sequence_number")),
            null_where(pc.invert(is_valid), numbers),
            null_where(pc.invert(is_valid), fragments),
        ]
        return pa.Table.from_arrays(columns, schema=schemas.ACKNOWLEDGEMENTS)

    def _merge(self) -> None:
        table = pa.concat_tables([self._latest, *self._unmerged]).combine_chunks()
        self._unmerged = []
        numbered = table.select(_DIRECTION).append_column(_POSITION, pa.array(range(table.num_rows), pa.int64()))
        grouped = numbered.group_by(_DIRECTION, use_threads=False)  # keeps the order of the directions
        self._latest = table.take(grouped.aggregate([(_POSITION, "max")])[f"{_POSITION}_max"])

    def _is_still_valid(self, pending: pa.Table) -> pa.Array[Any]:
        first: dict[tuple[bytes, bool], tuple[int, int]] = {}
        incomplete = pending.filter(pc.is_valid(pending["first_missing_fragment"]))
        for row in incomplete.select([*_DIRECTION, "message_sequence_number", "received_fragments"]).to_pylist():
            conversation, is_initiator, number, received = row.values()
            first.setdefault((conversation, is_initiator), (number, received))
        counts = pc.list_value_length(self._latest["partial_fragments"])
        partial = self._latest.select([*_DIRECTION, "partial_sequence_number"]).append_column("count", counts)
        return pa.array(
            [first.get((id_, to)) == (number, count) for id_, to, number, count in _rows(partial)], pa.bool_()
        )


def _rows(table: pa.Table) -> Any:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


MESSAGES: Final = "messages"
REJECTED: Final = "rejected"
INCOMPLETE: Final = "incomplete"
ACKNOWLEDGEMENTS: Final = "acknowledgements"
_FINAL_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class _LoadedFragments:
    chunk: Chunk
    position: int
    batch: pa.RecordBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class _OutputBatch:
    """A batch of one of the tables; without a name, reports that another `rows` rows were read, up to `position`."""

    name: str = ""
    batch: Any = None
    encoded: Any = None
    rows: int = 0
    position: int = 0


def run_reassembly(
    reassembler: Reassembler,
    inputs: Sequence[InputFile],
    schema: pa.Schema,
    output_files: Mapping[str, OutputFile],
    *,
    threads: int,
    progress: bool | None,
) -> ReassembleCounts:
    """Reassembles the fragments and writes the requested tables.

    Threads load chunks, one thread reassembles them, other threads encode the output, which is written in order.
    """

    def load(item: tuple[Chunk, int]) -> _LoadedFragments:
        chunk, position = item
        return _LoadedFragments(chunk=chunk, position=position, batch=conform(chunk.load().batch, schema))

    def encode(output_batch: _OutputBatch) -> _OutputBatch:
        if output_batch.name not in output_files:
            return output_batch
        return replace(output_batch, encoded=output_files[output_batch.name].encode(output_batch.batch))

    def weight_of(output_batch: _OutputBatch) -> int:
        if output_batch.name not in output_files:
            return 0
        return int(output_batch.batch.nbytes) * output_files[output_batch.name].size_factor

    latest = LatestAcknowledgements() if ACKNOWLEDGEMENTS in output_files else None
    counts = ReassembleCounts(acknowledgements=None if latest is None else 0)
    loaded = ordered_map(
        all_chunks(inputs),
        load,
        threads=threads,
        weight_of=lambda item: item[0].memory_bytes,
        weight_max=IN_FLIGHT_BYTES_MAX,
    )
    push_results = _push_all(reassembler, loaded, latest)
    encoded = ordered_map(push_results, encode, threads=threads, weight_of=weight_of, weight_max=IN_FLIGHT_BYTES_MAX)
    total = total_bytes(inputs)
    with (
        ProgressBar("Reassembling", total_bytes=total, shown=progress) as bar,
        contextlib.closing(loaded),
        contextlib.closing(push_results),
        contextlib.closing(encoded),
    ):
        for output_batch in encoded:
            _write(output_batch, output_files, counts)
            bar.update(rows=counts.rows, position=output_batch.position)
        bar.update(rows=counts.rows, position=total)
    pending = reassembler.pending()
    counts.add_blocked(pending)
    for output_batch in _final_batches(pending, latest):
        _write(encode(output_batch), output_files, counts)
    return counts


def _push_all(
    reassembler: Reassembler, loaded_chunks: Iterator[_LoadedFragments], latest: LatestAcknowledgements | None
) -> Generator[_OutputBatch]:
    position = 0
    for loaded in loaded_chunks:
        try:
            result = reassembler.push(loaded.batch)
        except (InputError, SchemaError) as error:
            raise error_in_file(error, file=loaded.chunk.file, row_in_file=loaded.chunk.row_in_file) from error
        if latest is not None:
            latest.add(result.acknowledgements)
        for name, table in ((MESSAGES, result.messages), (REJECTED, result.rejected)):
            for batch in table.to_batches():
                yield _OutputBatch(name=name, batch=batch, position=position)
        position = loaded.position
        yield _OutputBatch(rows=loaded.batch.num_rows, position=position)


def _final_batches(pending: pa.Table, latest: LatestAcknowledgements | None) -> Iterator[_OutputBatch]:
    """Yields the tables that are known only at the end."""
    for batch in pending.to_batches(max_chunksize=_FINAL_BATCH_ROWS):
        yield _OutputBatch(name=INCOMPLETE, batch=batch)
    if latest is not None:
        for batch in latest.table(pending=pending).to_batches(max_chunksize=_FINAL_BATCH_ROWS):
            yield _OutputBatch(name=ACKNOWLEDGEMENTS, batch=batch)


def _write(output_batch: _OutputBatch, output_files: Mapping[str, OutputFile], counts: ReassembleCounts) -> None:
    if output_batch.name in output_files and output_batch.batch.num_rows:
        output_files[output_batch.name].write(output_batch.encoded)
    counts.rows += output_batch.rows
    if output_batch.name == MESSAGES:
        counts.add_messages(output_batch.batch)
    elif output_batch.name == REJECTED:
        counts.add_rejected(output_batch.batch)
    elif output_batch.name == INCOMPLETE:
        counts.add_pending(output_batch.batch)
    elif output_batch.name == ACKNOWLEDGEMENTS:
        counts.acknowledgements = (counts.acknowledgements or 0) + output_batch.batch.num_rows


@dataclass(frozen=True, kw_only=True)
class ReassembleJob:
    """The arguments of a run."""

    fragments: Sequence[str]
    """Files, folders and patterns."""
    tables: Mapping[str, Path]
    """The output paths by table name; always with `messages`."""
    format: Format | None
    """The format of all tables; None to choose by their suffixes."""
    options: Mapping[str, Any]
    """Keyword arguments of the reassembler."""
    session_keys: Path | None
    """A file of session keys."""
    session_key_column: str | None
    """The column of the fragments with the session keys."""
    state: Path | None
    """The file to continue from if it exists, and to save pending messages to."""
    threads: int | None
    """The number of threads; None for one per core."""


def reassemble_files(job: ReassembleJob, *, progress: bool | None) -> tuple[ReassembleCounts, list[Path]]:
    """Reassembles files; returns the counts and the input files."""
    files = expand_patterns(job.fragments)
    file_formats = {name: output_format(path, job.format) for name, path in job.tables.items()}
    outputs = [*job.tables.values(), *([job.state] if job.state else [])]
    refuse_overwriting(outputs, inputs=[*files, *([job.session_keys] if job.session_keys else [])])
    threads = configure_threads(job.threads)
    with replacing_files(outputs) as parts:  # the state is replaced last: until then the run can be repeated
        reassembler = _make_reassembler(job)
        input_columns = fragment_columns(session_key_column=job.session_key_column)
        inputs = open_inputs(files, input_columns, keep_json_lines=False, threads=threads, progress=progress)
        schema = common_schema(inputs, input_columns)
        output_schemas = _output_schemas(reassembler, schema, file=files[0])
        with contextlib.ExitStack() as stack:
            output_files = {
                name: stack.enter_context(
                    OutputFile(part, file_formats[name], output_schemas[name], output=job.tables[name])
                )
                for name, part in zip(job.tables, parts, strict=False)
            }
            counts = run_reassembly(reassembler, inputs, schema, output_files, threads=threads, progress=progress)
        if job.state is not None:
            with writing(job.state):
                parts[-1].write_bytes(reassembler.checkpoint())
    return counts, files


_MEMORY_SHARE: Final = 4
_PENDING_BYTES_MIN: Final = 256 << 20
_FILE_LIMITS: Final = dict.fromkeys(("max_pending_messages", "max_fragments_per_message", "max_sequence_distance"))
"""Files end, so the memory alone is limited; those of the reassembler are for endless streams."""


def _default_pending_bytes() -> int:
    return max(_PENDING_BYTES_MIN, (memory_bytes() or 0) // _MEMORY_SHARE)


def _make_reassembler(job: ReassembleJob) -> Reassembler:
    keys = job.session_key_column if job.session_keys is None else load_session_keys(job.session_keys)
    if job.state is None or not job.state.exists():
        limits: dict[str, Any] = {"max_pending_bytes": _default_pending_bytes(), **_FILE_LIMITS, **job.options}
        return Reassembler(**limits, session_keys=keys)
    if job.options:
        given = ", ".join(
            "--any-order" if name == "in_order" else f"--{name.replace('_', '-')}" for name in job.options
        )
        raise OptionError(f"{job.state}: the state keeps the limits and order of its first run; remove {given}")
    with reading(job.state):
        state = job.state.read_bytes()
    try:
        return Reassembler.restore(state, session_keys=keys)
    except MalformedDataError as error:
        raise error_in_file(error, file=job.state) from error


def _output_schemas(reassembler: Reassembler, schema: pa.Schema, *, file: Path) -> dict[str, pa.Schema]:
    """Returns the columns of all tables; raises if the input lacks a required column, before any rows are read."""
    try:
        messages = reassembler.push(empty_batch(schema)).messages.schema
    except (InputError, SchemaError) as error:
        raise error_in_file(error, file=file) from error
    tables = {
        MESSAGES: messages,
        REJECTED: schemas.REJECTED,
        INCOMPLETE: schemas.PENDING,
        ACKNOWLEDGEMENTS: schemas.ACKNOWLEDGEMENTS,
    }
    return {name: without_dictionaries(table) for name, table in tables.items()}


_NOT_ON_SPARK: Final = ("max_pending_messages", "max_sequence_distance")


def reassemble_on_spark(job: ReassembleJob) -> tuple[ReassembleCounts, list[Path]]:
    """Reassembles files on Spark into folders of Parquet files; returns the counts and the input files.

    Spark sorts the fragments first, so that a task normally holds one message at a time.
    """
    _check_options(job)
    files = expand_patterns(job.fragments)
    refuse_partitions(files)
    _check_files(files)
    refuse_overwriting([*job.tables.values()], inputs=[*files, *([job.session_keys] if job.session_keys else [])])
    input_columns = fragment_columns(session_key_column=job.session_key_column)
    common_schema(open_inputs(files, input_columns, keep_json_lines=False, threads=1, progress=False), input_columns)
    keys = job.session_key_column if job.session_keys is None else load_session_keys(job.session_keys)
    from ssbroker.spark import cli, reassemble  # noqa: PLC0415 - PySpark is optional

    with cli.spark_errors_translated(), contextlib.ExitStack() as stack:
        parts = {name: stack.enter_context(replacing_folder(path)) for name, path in job.tables.items()}
        is_quiet = not sys.stderr.isatty()
        session = stack.enter_context(cli.session(threads=job.threads, quiet=is_quiet))
        fragments = cli.read(session, files, kind=Format.PARQUET)
        found = reassemble(fragments, strategy="sort", session_keys=keys, **job.options).persist()
        tables = {MESSAGES: found.messages, REJECTED: found.rejected, INCOMPLETE: found.incomplete}
        for name, part in parts.items():
            tables[name].write.parquet(str(part))
            if not part.is_dir():
                raise OutputError(
                    f"{job.tables[name]}: Spark wrote the output on another machine; use a path that both machines reach"
                )
        counts = _count_on_spark(found, rows=fragments.count())
        found.unpersist()
    return counts, files


def _check_options(job: ReassembleJob) -> None:
    if job.state is not None or ACKNOWLEDGEMENTS in job.tables:
        raise OptionError("--spark supports neither --state nor --acknowledgements")
    for name in _NOT_ON_SPARK:
        if name in job.options:
            raise OptionError(f"--spark does not support --{name.replace('_', '-')}")
    for path in job.tables.values():
        if job.format not in (None, Format.PARQUET) or format_by_suffix(path) not in (None, Format.PARQUET):
            raise OptionError(f"{path}: --spark writes only folders of Parquet files")


def _check_files(files: list[Path]) -> None:
    for file in files:
        with reading(file):
            file_format = input_format(file)
        if file_format is not Format.PARQUET:
            raise OptionError(f"{file}: --spark reads fragments only from Parquet")


def _count_on_spark(found: SparkReassembly, *, rows: int) -> ReassembleCounts:
    messages = _integer_row(found.messages.selectExpr("count(*)", "coalesce(sum(length(message_body)), 0)"))
    pending = _integer_row(
        found.incomplete.selectExpr("count(*)", "count(first_missing_fragment)", "coalesce(sum(received_bytes), 0)")
    )
    counts = ReassembleCounts(rows=rows, messages=messages[0], message_bytes=messages[1])
    counts.incomplete, counts.waiting, counts.pending_bytes = pending[1], pending[0] - pending[1], pending[2]
    has_next = (
        "bool_or(waits_for_sequence_number is null) over (partition by conversation_id, is_initiator) as has_next"
    )
    waiting = found.incomplete.selectExpr("first_missing_fragment", has_next)
    counts.blocked = waiting.where("first_missing_fragment is null and not has_next").count()
    for row in found.rejected.groupBy("reason").count().collect():
        counts.reasons[row["reason"]] = row["count"]
    return counts


def _integer_row(frame: Any) -> list[int]:
    return [int(value) for value in frame.first()]
