"""`ssbroker reassemble`: files of fragments in, a file of whole messages out."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ssbroker.cli.options import (
    FormatOption,
    ProgressOption,
    QuietOption,
    SummaryAsJsonOption,
    ThreadsOption,
    parse_count,
    parse_size,
)
from ssbroker.cli.reassemble_summary import Summary
from ssbroker.exceptions import OptionError

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
    from ssbroker.cli.reassemble_files import Job, reassemble_files  # noqa: PLC0415 - the help comes quicker without what reads files

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
    job = Job(
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
        from ssbroker.cli.reassemble_on_spark import reassemble_on_spark  # noqa: PLC0415 - Spark is an extra

        tally, files = reassemble_on_spark(job)
    else:
        tally, files = reassemble_files(job, progress=False if quiet and progress is None else progress)
    summary = Summary(
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
