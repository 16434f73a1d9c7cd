"""`ssbroker reassemble`: reassembles files of fragments into messages and prints a summary."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from ssbroker._text import count_of
from ssbroker.cli.options import (
    FormatOption,
    ProgressOption,
    QuietOption,
    SummaryAsJsonOption,
    ThreadsOption,
    as_options,
    parse_count,
    parse_size,
    parse_size_limit,
)
from ssbroker.cli.reassemble_files import ReassembleJob, default_pending_bytes, reassemble_files
from ssbroker.cli.reassemble_summary import (
    ACKNOWLEDGEMENTS,
    INCOMPLETE,
    INVALID,
    MESSAGES,
    REJECTED,
    ReassembleSummary,
    format_bytes,
)
from ssbroker.exceptions import OptionError

_LIMIT_REASON: Final = "limit_exceeded"
_LIMIT_OPTION: Any = {"rich_help_panel": "Limits: a SIZE such as 256MiB, a COUNT, or 'none'"}
EXAMPLES = """Examples:

Reassemble messages from fragments in any order:

  ssbroker reassemble day/*.parquet -o messages.parquet

Also list rejected fragments and incomplete messages:

  ssbroker reassemble in.csv -o out.csv --rejected no.csv --incomplete wait.csv

Write invalid rows to another file instead of stopping at the first one:

  ssbroker reassemble day/*.csv -o out.csv --invalid bad.csv

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
            help="Fragments: files, folders or patterns, in Parquet, CSV, JSON Lines or Arrow IPC, all with the same columns.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="MESSAGES",
            help="Output file. Its suffix determines the format, unless --format is specified.",
        ),
    ],
    rejected: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the rejected fragments with the reason.")
    ] = None,
    invalid: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write rows with an invalid value to this file, with column, value and reason, and reassemble the other rows. Default: stop at the first invalid row. Not with --spark.",
        ),
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
            help="File with the keys that encrypt the signatures, in the columns conversation_id and session_key.",
        ),
    ] = None,
    session_key_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the fragments that contains the keys.")
    ] = None,
    any_order: Annotated[
        bool,
        typer.Option("--any-order", help="Write each message when it is complete, without waiting for earlier ones."),
    ] = False,
    max_pending_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Maximum memory for pending messages, in bytes or with a unit; half of it is for conversations without a complete message. Default: a quarter of the memory of the machine or container, at least 256MiB; with --spark, for each task, 1GiB, or four times --max-message-bytes if that is more, also for 'none'.",
            **_LIMIT_OPTION,
        ),
    ] = None,
    max_pending_messages: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            help="Maximum number of pending messages. Default: none. Not with --spark.",
            **_LIMIT_OPTION,
        ),
    ] = None,
    max_message_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Maximum size of a message, in bytes or with a unit. Default: 1GiB; with --spark, 256MiB. Cannot be 'none'.",
            **_LIMIT_OPTION,
        ),
    ] = None,
    max_fragments_per_message: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            help="Maximum number of fragments of a message. Default: none; with --spark, 1048576.",
            **_LIMIT_OPTION,
        ),
    ] = None,
    max_sequence_distance: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            help="Maximum distance in sequence numbers from the first missing message. Default: none. Not with --spark.",
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

    The output has the columns of the input, except those that describe individual fragments. Fragments that are damaged, conflict with others, are duplicates or exceed a limit are rejected and counted in the summary. Existing outputs are replaced only when all new ones are complete.

    Exit status: 0 if no fragment exceeded a limit, 1 if any did, 2 after an error.
    """
    if session_keys is not None and session_key_column is not None:
        raise OptionError("--session-keys and --session-key-column cannot be used together: specify one of them")
    tables = {
        MESSAGES: output,
        REJECTED: rejected,
        INVALID: invalid,
        INCOMPLETE: incomplete,
        ACKNOWLEDGEMENTS: acknowledgements,
    }
    limits = {
        "max_pending_bytes": (max_pending_bytes, parse_size_limit),
        "max_pending_messages": (max_pending_messages, parse_count),
        "max_message_bytes": (max_message_bytes, parse_size),
        "max_fragments_per_message": (max_fragments_per_message, parse_count),
        "max_sequence_distance": (max_sequence_distance, parse_count),
    }
    names = {name: f"--{name.replace('_', '-')}" for name in limits}
    options: dict[str, Any] = {
        name: parse(text, option=names[name]) for name, (text, parse) in limits.items() if text is not None
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
    with as_options(**names):
        if spark:
            from ssbroker.cli.on_spark import reassemble_on_spark  # noqa: PLC0415 - needed only here

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
    """Returns advice on which limit to raise, given the limits on the command line and the state from which the run continued.

    Examples:
        >>> _limit_advice({"max_message_bytes": "1MiB", "max_pending_bytes": "1GiB"}, state=None, on_spark=False)
        'raise --max-pending-bytes (now 1GiB) or --max-message-bytes (now 1MiB)'
    """
    if state is not None:
        return f"{state} keeps the limits of its first run; start again without this file and with a larger --max-pending-bytes"
    names = dict.fromkeys(("max_pending_bytes", *given, *(("max_message_bytes",) if on_spark else ())))
    values = {"max_pending_bytes": "" if on_spark else format_bytes(default_pending_bytes()), **given}
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
        f"ssbroker: warning: {count_of(messages, 'complete message')} {verb} for earlier messages that are not in the input (each direction starts at number 0); "
        f"if earlier runs read these messages, use {state} in all runs, or --any-order",
        err=True,
    )
