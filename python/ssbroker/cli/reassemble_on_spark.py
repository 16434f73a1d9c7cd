"""`ssbroker reassemble --spark`: the same, done by Spark into folders of Parquet."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ssbroker.cli import formats, intake
from ssbroker.cli.conform import common_schema
from ssbroker.cli.errors import reading
from ssbroker.cli.files import expand, open_sources
from ssbroker.cli.formats import Format
from ssbroker.cli.key_file import load_keys
from ssbroker.cli.output import refuse_overwriting, replacing_folder
from ssbroker.cli.reassemble_files import Job
from ssbroker.cli.reassemble_flow import ACKNOWLEDGEMENTS, INCOMPLETE, MESSAGES, REJECTED
from ssbroker.cli.reassemble_tally import Tally
from ssbroker.exceptions import OptionError, OutputError

if TYPE_CHECKING:
    from ssbroker.spark import Reassembly

_NOT_ON_SPARK: Final = ("max_pending_messages", "max_sequence_distance")


def reassemble_on_spark(job: Job) -> tuple[Tally, list[Path]]:
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
    wanted = intake.fragments(session_key_column=job.session_key_column)
    common_schema(open_sources(files, wanted, lines=False, threads=1, progress=False), wanted)
    keys = job.session_key_column if job.session_keys is None else load_keys(job.session_keys)
    from ssbroker.spark import formats as spark_formats  # noqa: PLC0415 - only where Spark is wanted
    from ssbroker.spark import reassemble  # noqa: PLC0415

    with spark_formats.told_as_ours(), contextlib.ExitStack() as stack:
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


def _check(job: Job) -> None:
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


def _counted(found: Reassembly, *, rows: int) -> Tally:
    messages = _row(found.messages.selectExpr("count(*)", "coalesce(sum(length(message_body)), 0)"))
    pending = _row(
        found.incomplete.selectExpr("count(*)", "count(first_missing_fragment)", "coalesce(sum(received_bytes), 0)")
    )
    tally = Tally(rows=rows, messages=messages[0], message_bytes=messages[1])
    tally.incomplete, tally.waiting, tally.pending_bytes = pending[1], pending[0] - pending[1], pending[2]
    for row in found.rejected.groupBy("reason").count().collect():
        tally.reasons[row["reason"]] = row["count"]
    return tally


def _row(one: Any) -> list[int]:
    return [int(value) for value in one.first()]
