"""`ssbroker reassemble` without Spark: reads files, reassembles their fragments and writes the tables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute

from ssbroker import schemas
from ssbroker._arguments import OnErrors
from ssbroker._arrow import null_where
from ssbroker._arrow_types import without_dictionaries
from ssbroker.cli.chunks import (
    IN_FLIGHT_BYTES_MAX,
    UNMERGED_ROWS_MAX,
    Chunk,
    InputFile,
    all_chunks,
    empty_batch,
    total_bytes,
)
from ssbroker.cli.errors import error_in_file, reading, writing
from ssbroker.cli.file_formats import Format, output_format
from ssbroker.cli.input_columns import fragment_columns
from ssbroker.cli.input_files import common_schema, conform, expand_patterns, open_inputs
from ssbroker.cli.invalid_rows import INVALID_ROWS_SCHEMA, in_order, invalid_in_file, load_valid_rows
from ssbroker.cli.output_paths import refuse_overwriting, replacing_files
from ssbroker.cli.parallel_map import configure_threads, ordered_map
from ssbroker.cli.reassemble_summary import (
    ACKNOWLEDGEMENTS,
    DIRECTION,
    INCOMPLETE,
    INVALID,
    MESSAGES,
    REJECTED,
    ReassembleCounts,
)
from ssbroker.cli.session_keys import load_session_keys
from ssbroker.cli.terminal import ProgressBar
from ssbroker.cli.text_conversion import InvalidCellError
from ssbroker.cli.writers import OutputFile
from ssbroker.exceptions import InputError, MalformedDataError, OptionError, SchemaError
from ssbroker.reassembly import Reassembler, SessionKeys

pc: Any = pyarrow.compute  # the stubs do not support text and bytes with 64-bit offsets


@dataclass(frozen=True, kw_only=True)
class ReassembleJob:
    """The arguments of a run."""

    fragments: Sequence[str]
    """Files, folders and patterns."""
    tables: Mapping[str, Path]
    """The output paths by table name; always includes `messages`."""
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

    def load_keys(self) -> SessionKeys | None:
        """Returns the session keys, or the column that contains them; None if there are none."""
        return self.session_key_column if self.session_keys is None else load_session_keys(self.session_keys)

    def refuse_overwriting_inputs(self, outputs: Sequence[Path], *, files: Sequence[Path]) -> None:
        """Raises an error if an output would overwrite one of the files that are read."""
        refuse_overwriting(outputs, inputs=[*files, *([] if self.session_keys is None else [self.session_keys])])


def reassemble_files(job: ReassembleJob, *, progress: bool | None) -> tuple[ReassembleCounts, list[Path]]:
    """Reassembles files; returns the counts and the input files."""
    files = expand_patterns(job.fragments)
    file_formats = {name: output_format(path, job.format) for name, path in job.tables.items()}
    outputs = [*job.tables.values(), *([job.state] if job.state else [])]
    job.refuse_overwriting_inputs(outputs, files=files)
    threads = configure_threads(job.threads)
    with replacing_files(outputs) as parts:  # the state is replaced last, so that the run can be repeated until then
        reassembler = _make_reassembler(job)
        input_columns = fragment_columns(session_key_column=job.session_key_column)
        inputs = open_inputs(
            files,
            input_columns,
            keep_json_lines=False,
            threads=threads,
            progress=progress,
            lists_invalid=INVALID in job.tables,
        )
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
"""Limits that are off by default: because files end, limiting the memory is enough; the reassembler's defaults are for endless streams."""
_CONTAINER_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def default_pending_bytes() -> int:
    """Returns the default maximum memory for pending messages."""
    return max(_PENDING_BYTES_MIN, (memory_bytes() or 0) // _MEMORY_SHARE)


def memory_bytes() -> int | None:
    """Returns the physical memory, or the container's memory limit if that is smaller; None if the system does not report it."""
    found: list[int] = []
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows has no `sysconf`
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in _CONTAINER_LIMITS:
        with contextlib.suppress(ValueError, OSError):  # the file says "max" if there is no limit
            found.append(int(Path(file).read_text(encoding="ascii")))
    return min(found, default=None)


def _make_reassembler(job: ReassembleJob) -> Reassembler:
    keys = job.load_keys()
    if job.state is None or not job.state.exists():
        limits: dict[str, Any] = {"max_pending_bytes": default_pending_bytes(), **_FILE_LIMITS, **job.options}
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
    """Returns the columns of all tables; raises an error if the input lacks a required column, before any rows are read."""
    try:
        messages = reassembler.push(empty_batch(schema)).messages.schema
    except (InputError, SchemaError) as error:
        raise error_in_file(error, file=file) from error
    tables = {
        MESSAGES: messages,
        REJECTED: schemas.REJECTED,
        INCOMPLETE: schemas.PENDING,
        ACKNOWLEDGEMENTS: schemas.ACKNOWLEDGEMENTS,
        INVALID: INVALID_ROWS_SCHEMA,
    }
    return {name: without_dictionaries(table) for name, table in tables.items()}


_FINAL_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class _LoadedFragments:
    chunk: Chunk
    position: int
    batch: pa.RecordBatch
    row_in_file: Callable[[int], int]
    invalid: list[pa.RecordBatch]
    """The rows with cells that cannot be converted, which `batch` lacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _OutputBatch:
    """A batch of one of the tables."""

    name: str
    batch: pa.RecordBatch
    encoded: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Progress:
    """The number of rows in a reassembled chunk, and the position in the input at its end."""

    rows: int
    position: int


_Result: TypeAlias = _OutputBatch | _Progress


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

    Some threads load chunks, one thread reassembles them, and other threads encode the output, which is written in order.
    """

    def load(item: tuple[Chunk, int]) -> _LoadedFragments:
        chunk, position = item
        try:
            valid = load_valid_rows(chunk)
        except InvalidCellError as error:
            raise _with_option(error) from None
        return _LoadedFragments(
            chunk=chunk,
            position=position,
            batch=conform(valid.loaded.batch, schema),
            row_in_file=valid.row_in_file,
            invalid=valid.invalid,
        )

    def encode(result: _Result) -> _Result:
        if isinstance(result, _Progress) or result.name not in output_files:
            return result
        return replace(result, encoded=output_files[result.name].encode(result.batch))

    def weight_of(result: _Result) -> int:
        if isinstance(result, _Progress) or result.name not in output_files:
            return 0
        return int(result.batch.nbytes) * output_files[result.name].size_factor

    latest = LatestAcknowledgements() if ACKNOWLEDGEMENTS in output_files else None
    counts = ReassembleCounts(acknowledgements=None if latest is None else 0)
    loaded = ordered_map(
        all_chunks(inputs),
        load,
        threads=threads,
        weight_of=lambda item: item[0].memory_bytes,
        weight_max=IN_FLIGHT_BYTES_MAX,
    )
    push_results = _push_all(reassembler, loaded, latest, errors="reject" if INVALID in output_files else "raise")
    encoded = ordered_map(push_results, encode, threads=threads, weight_of=weight_of, weight_max=IN_FLIGHT_BYTES_MAX)
    total = total_bytes(inputs)
    with (
        ProgressBar("Reassembling", total_bytes=total, shown=progress) as bar,
        contextlib.closing(loaded),
        contextlib.closing(push_results),
        contextlib.closing(encoded),
    ):
        for result in encoded:
            _write(result, output_files, counts)
            if isinstance(result, _Progress):
                bar.update(rows=counts.rows, position=result.position)
        bar.update(rows=counts.rows, position=total)
    pending = reassembler.pending()
    counts.add_blocked(pending)
    for output_batch in _final_batches(pending, latest):
        _write(encode(output_batch), output_files, counts)
    return counts


def _push_all(
    reassembler: Reassembler,
    loaded_chunks: Iterator[_LoadedFragments],
    latest: LatestAcknowledgements | None,
    *,
    errors: OnErrors,
) -> Generator[_Result]:
    for loaded in loaded_chunks:
        try:
            result = reassembler.push(loaded.batch, errors=errors)
        except (InputError, SchemaError) as error:
            named = error_in_file(error, file=loaded.chunk.file, row_in_file=loaded.row_in_file)
            raise _with_option(named) from error
        invalid = loaded.invalid
        if result.invalid.num_rows:
            invalid.append(invalid_in_file(result.invalid, loaded.chunk, loaded.row_in_file))
        for batch in in_order(invalid).to_batches() if invalid else ():
            yield _OutputBatch(name=INVALID, batch=batch)
        if latest is not None:
            latest.add(result.acknowledgements)
        for name, table in ((MESSAGES, result.messages), (REJECTED, result.rejected)):
            for batch in table.to_batches():
                yield _OutputBatch(name=name, batch=batch)
        rows = loaded.batch.num_rows - result.invalid.num_rows
        yield _Progress(rows=rows, position=loaded.position)


def _with_option(error: InputError | SchemaError) -> InputError | SchemaError:
    """In an error about an invalid row, suggests `--invalid`."""
    is_of_row = isinstance(error, InputError) and not isinstance(error, MalformedDataError) and error.row is not None
    if is_of_row:
        error.args = (f"{error}; to list invalid rows in a file and reassemble the others, use --invalid FILE",)
    return error


def _final_batches(pending: pa.Table, latest: LatestAcknowledgements | None) -> Iterator[_OutputBatch]:
    """Yields the tables that are known only at the end."""
    for batch in pending.to_batches(max_chunksize=_FINAL_BATCH_ROWS):
        yield _OutputBatch(name=INCOMPLETE, batch=batch)
    if latest is not None:
        for batch in latest.table(pending=pending).to_batches(max_chunksize=_FINAL_BATCH_ROWS):
            yield _OutputBatch(name=ACKNOWLEDGEMENTS, batch=batch)


def _write(result: _Result, output_files: Mapping[str, OutputFile], counts: ReassembleCounts) -> None:
    if isinstance(result, _Progress):
        counts.rows += result.rows
        return
    if result.name in output_files and result.batch.num_rows:
        output_files[result.name].write(result.encoded)
    if result.name == MESSAGES:
        counts.add_messages(result.batch)
    elif result.name == REJECTED:
        counts.add_rejected(result.batch)
    elif result.name == INVALID:
        counts.invalid.add_rows(result.batch)
    elif result.name == INCOMPLETE:
        counts.add_pending(result.batch)
    elif result.name == ACKNOWLEDGEMENTS:
        counts.acknowledgements = (counts.acknowledgements or 0) + result.batch.num_rows


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

        The acknowledgement of a partial message is removed if the message is no longer pending with these fragments: a
        later push may have rejected the whole message, and the sender would never send it again.
        """
        self._merge()
        numbers, fragments = self._latest["partial_sequence_number"], self._latest["partial_fragments"]
        is_valid = self._is_still_valid(pending)
        columns = [
            *(self._latest[name] for name in (*DIRECTION, "acked_sequence_number")),
            null_where(pc.invert(is_valid), numbers),
            null_where(pc.invert(is_valid), fragments),
        ]
        return pa.Table.from_arrays(columns, schema=schemas.ACKNOWLEDGEMENTS)

    def _merge(self) -> None:
        table = pa.concat_tables([self._latest, *self._unmerged]).combine_chunks()
        self._unmerged = []
        numbered = table.select(DIRECTION).append_column(_POSITION, pa.array(range(table.num_rows), pa.int64()))
        grouped = numbered.group_by(DIRECTION, use_threads=False)  # keeps the order of the directions
        self._latest = table.take(grouped.aggregate([(_POSITION, "max")])[f"{_POSITION}_max"])

    def _is_still_valid(self, pending: pa.Table) -> pa.Array[Any]:
        first: dict[tuple[bytes, bool], tuple[int, int]] = {}
        incomplete = pending.filter(pc.is_valid(pending["first_missing_fragment"]))
        for row in incomplete.select([*DIRECTION, "message_sequence_number", "received_fragments"]).to_pylist():
            conversation, is_initiator, number, received = row.values()
            first.setdefault((conversation, is_initiator), (number, received))
        counts = pc.list_value_length(self._latest["partial_fragments"])
        partial = self._latest.select([*DIRECTION, "partial_sequence_number"]).append_column("count", counts)
        return pa.array(
            [first.get((id_, to)) == (number, count) for id_, to, number, count in _rows(partial)], pa.bool_()
        )


def _rows(table: pa.Table) -> Any:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
