"""Reassembling files on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ssbroker import schemas
from ssbroker.cli import intake
from ssbroker.cli.conform import common_schema
from ssbroker.cli.errors import located, reading, writing
from ssbroker.cli.files import expand, open_sources
from ssbroker.cli.formats import Format, of_output
from ssbroker.cli.key_file import load_keys
from ssbroker.cli.output import refuse_overwriting, replacing_files
from ssbroker.cli.pieces import without_rows
from ssbroker.cli.pipeline import use_threads
from ssbroker.cli.reassemble_flow import ACKNOWLEDGEMENTS, INCOMPLETE, MESSAGES, REJECTED, reassemble
from ssbroker.cli.reassemble_tally import Tally
from ssbroker.cli.results import Result
from ssbroker.cli.writers import without_dictionaries
from ssbroker.exceptions import InputError, MalformedDataError, OptionError, SchemaError
from ssbroker.reassembler import Reassembler


@dataclass(frozen=True, kw_only=True)
class Job:
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


def reassemble_files(job: Job, *, progress: bool | None) -> tuple[Tally, list[Path]]:
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
        wanted = intake.fragments(session_key_column=job.session_key_column)
        sources = open_sources(files, wanted, lines=False, threads=threads, progress=progress)
        schema = common_schema(sources, wanted)
        columns = _columns(reassembler, schema, file=files[0])
        with contextlib.ExitStack() as stack:
            results = {
                name: stack.enter_context(Result(part, kinds[name], columns[name], output=job.tables[name]))
                for name, part in zip(job.tables, parts, strict=False)
            }
            tally = reassemble(reassembler, sources, schema, results, threads=threads, progress=progress)
        if job.state is not None:
            with writing(job.state):
                parts[-1].write_bytes(reassembler.checkpoint())
    return tally, files


def _reassembler(job: Job) -> Reassembler:
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
