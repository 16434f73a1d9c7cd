"""`ssbroker route --spark`: the same, done by Spark into a folder of Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from ssbroker.catalog import Catalog
from ssbroker.cli import formats
from ssbroker.cli.conform import common_schema
from ssbroker.cli.errors import reading
from ssbroker.cli.files import expand, open_sources
from ssbroker.cli.formats import Format
from ssbroker.cli.intake import CONVERSATIONS
from ssbroker.cli.output import refuse_overwriting, replacing_folder
from ssbroker.cli.route_files import Job
from ssbroker.cli.route_summary import TOP
from ssbroker.cli.route_tally import COUNTED, Tally
from ssbroker.exceptions import OptionError, OutputError

_READABLE: Final = (Format.PARQUET, Format.CSV, Format.JSONL)


def route_on_spark(job: Job) -> tuple[Tally, list[Path]]:
    """Routes files into a folder of Parquet, which appears whole or not at all.

    Args:
        job: What to do.

    Returns:
        The counts, and the files that were read.

    Raises:
        SsbrokerError: Something in the input is wrong, the output cannot be written, or PySpark is not there.
    """
    _check(job)
    files = expand(job.conversations)
    kind = _common_kind(files)
    refuse_overwriting([job.output], inputs=files, catalogs=[job.catalog])
    if kind is not Format.JSONL:  # Spark would take the columns of one file for those of all
        sources = open_sources(files, CONVERSATIONS, lines=False, threads=1, progress=False)
        common_schema(sources, CONVERSATIONS)
    from ssbroker.spark import formats as spark_formats  # noqa: PLC0415 - only where Spark is wanted
    from ssbroker.spark import route  # noqa: PLC0415

    quiet = not sys.stderr.isatty()
    tally = Tally()
    with spark_formats.told_as_ours(), replacing_folder(job.output) as part:
        catalog = Catalog.load(job.catalog, now=job.now)
        with spark_formats.session(threads=job.threads, quiet=quiet) as session:
            conversations = spark_formats.read(session, files, kind=kind)
            decided = route(
                conversations,
                catalog,
                now=job.now,
                tie_break=job.tie_break,
                pending_request=job.pending_request,
            )
            decided.write.parquet(str(part))
            if not part.is_dir():
                raise OutputError(
                    f"{job.output}: Spark wrote on another machine; the output has to be where both reach it"
                )
            top = {"next_hop_address": TOP, "target_database": TOP}
            counted = spark_formats.count(session.read.parquet(str(part)), COUNTED, top=top)
        tally.add(counted, rows=sum(row["count"] for row in counted["outcome"].to_pylist()))
    return tally, files


def _check(job: Job) -> None:
    if job.format not in (None, Format.PARQUET) or formats.by_suffix(job.output) not in (None, Format.PARQUET):
        raise OptionError(f"{job.output}: --spark writes a folder of Parquet, no other format")


def _common_kind(files: list[Path]) -> Format:
    kinds = {}
    for file in files:
        with reading(file):
            kinds[formats.of_input(file)] = file
    if len(kinds) > 1:
        raise OptionError(f"--spark reads files of one format at a time, not of {' and '.join(kinds)}")
    kind = next(iter(kinds))
    if kind not in _READABLE:
        raise OptionError(f"{kinds[kind]}: --spark reads {', '.join(_READABLE)}, not Arrow IPC")
    return kind
