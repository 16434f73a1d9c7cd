"""`ssbroker stuck`: explains why messages wait in `sys.transmission_queue`, read from an instance folder or an export."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute
import typer
from rich.console import Console

from ssbroker._arguments import parse_timestamp
from ssbroker._arrow import with_column
from ssbroker._compat import cast
from ssbroker._text import count_of, one_line, quoted_name, restore_spaces, shortened_list
from ssbroker.advice import unknown_ids_text
from ssbroker.catalog.instance_folder import is_instance_folder
from ssbroker.cli.chunks import all_chunks
from ssbroker.cli.diagnose_options import (
    SHOWN_NAMES_MAX,
    AddressOption,
    CatalogsArgument,
    FleetOption,
    check_instances,
    instance_paths,
    load_fleet,
    parse_instance_addresses,
    parse_start,
    require_start,
)
from ssbroker.cli.errors import error_in_file
from ssbroker.cli.file_formats import output_format
from ssbroker.cli.input_columns import QUEUE_COLUMNS
from ssbroker.cli.input_files import (
    add_is_initiator,
    common_schema,
    conform,
    expand_patterns,
    logical_type,
    open_inputs,
    with_known_names,
)
from ssbroker.cli.options import (
    AtOption,
    EncodingOption,
    FormatOption,
    FromTargetsOption,
    LenientCatalogOption,
    PendingRequestOption,
    VariableOption,
    as_options,
    parse_script_options,
    parse_time,
)
from ssbroker.cli.output_paths import check_writable, refuse_overwriting, replacing_files
from ssbroker.cli.readers import reject_misspelled
from ssbroker.cli.terminal import print_prose
from ssbroker.cli.writers import OutputFile
from ssbroker.exceptions import InputError, OptionError, SchemaError

if TYPE_CHECKING:
    from ssbroker.diagnose import Fleet

pc: Any = pyarrow.compute  # the stubs do not support chunked columns

EXAMPLES = """Examples:

Explain the messages that wait in the instance whose folder is shop:

  ssbroker stuck shop/ stock/ --from shop

Explain an export of the database Sales of NORTH:

  ssbroker stuck --fleet instances/ --queue queue.csv --from NORTH/Sales

Explain the messages of several databases, which the column database names, and write a row for each message:

  ssbroker stuck --fleet instances/ --queue queue.csv --from NORTH -o why.csv
"""


def stuck(
    *,
    catalogs: CatalogsArgument,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Rows of sys.transmission_queue: a file, folder or pattern, in Parquet, CSV with a header line, JSON Lines or Arrow IPC. Default: the rows of the instance folder; if there are several folders, --from selects one.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="INSTANCE/DATABASE",
            help="Instance and database of the queue. Omit the instance if only one has the database, and the database if the instance has only one or a column names it.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also write a row for each message to this file. Its suffix determines the format, unless --format is specified.",
        ),
    ] = None,
    format: FormatOption = None,  # noqa: A002
    from_target: FromTargetsOption = False,
    fleet: FleetOption = False,
    address: AddressOption = None,
    at: AtOption = None,
    pending_request: PendingRequestOption = "continue",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON array with an object for each message, in the order of the queue."),
    ] = False,
    variable: VariableOption = None,
    encoding: EncodingOption = None,
    lenient: LenientCatalogOption = False,
) -> None:
    """Explain why messages wait in a transmission queue.

    Each message is traced to its end and back. If no fault of the routes is found, its transmission_status names the cause.

    Exit status: 0 if no problem is found, 1 if one is found for any message, 2 after an error.
    """
    from ssbroker.diagnose import STUCK  # noqa: PLC0415 - keeps --help fast
    from ssbroker.diagnose.stuck_messages import explain_messages  # noqa: PLC0415 - the same

    current_time = datetime.now(UTC)
    now = parse_time(at, option="--at", default=current_time)
    paths = instance_paths(catalogs, is_fleet=fleet)
    folders = {name: path for name, path in paths.items() if is_instance_folder(path)}
    own = _own_queues(queue, folders)
    if own and from_target:
        raise OptionError(
            "--from-target: the rows of an instance folder already specify which side sent each message; omit the option"
        )
    files = [] if own or queue is None else expand_patterns([queue])
    outputs = [] if output is None else [output]
    formats = [output_format(path, format) for path in outputs]
    refuse_overwriting(outputs, inputs=files, catalogs=[*paths.values()])
    check_writable(outputs)
    options = parse_script_options(variable, encoding, lenient=lenient)
    addresses = parse_instance_addresses(address)
    instances = load_fleet(catalogs, is_fleet=fleet, now=current_time, options=options, addresses=addresses)
    check_instances(addresses, instances)
    instance, messages = (
        _read_folder(own, start, instances) if own else _read(files, start, instances, from_target=from_target)
    )
    rows = explain_messages(instances, messages, instance=instance, now=now, pending_request=pending_request)
    table = pa.Table.from_pylist(rows, schema=STUCK)
    for path, file_format in zip(outputs, formats, strict=True):
        with replacing_files([path]) as (part,), OutputFile(part, file_format, STUCK, output=path) as output_file:
            for batch in table.to_batches():
                output_file.write(output_file.encode(batch))
    if as_json:
        typer.echo(json.dumps(table.to_pylist(), indent=2, ensure_ascii=False))
    else:
        print_messages(rows, _enqueue_times(messages), instance, Console())
    if any(map(_has_problem, rows)):
        raise typer.Exit(1)


def _own_queues(queue: str | None, folders: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the instance folders from one of which the queue is read; empty if `--queue` names files."""
    if queue is None:
        if not folders:
            raise OptionError(
                "--queue: specify files with the rows of sys.transmission_queue, because no catalog is an instance folder"
            )
        return dict(folders)
    given = Path(queue)
    if not is_instance_folder(given):
        return {}
    found = {name: path for name, path in folders.items() if path.samefile(given)}
    if not found:
        raise OptionError(f"--queue: {queue} is an instance folder; specify it as a catalog too")
    return found


_ALL_MESSAGES: Final = (0, 2**63 - 1)
_VIEW_COLUMNS: Final = (
    "to_service_name",
    "to_broker_instance",
    "from_service_name",
    "is_initiator",
    "transmission_status",
    "enqueue_time",
)


def _read_folder(folders: Mapping[str, Path], start: str | None, fleet: Fleet) -> tuple[str, pa.Table]:
    """Returns the instance whose messages wait, and the rows of its queue, without the bodies."""
    from ssbroker.broker.instance import Instance, instance_context  # noqa: PLC0415 - only for instance folders
    from ssbroker.broker.views import TRANSMISSION_QUEUE, read_slice  # noqa: PLC0415 - the same
    from ssbroker.diagnose.trace import resolve_database  # noqa: PLC0415 - keeps --help fast

    instance, database = parse_start(start, fleet)
    if instance is None and len(folders) > 1:
        raise InputError(
            "--from: expected INSTANCE[/DATABASE], because several instances are loaded: "
            f"{', '.join(shortened_list(folders, SHOWN_NAMES_MAX))}"
        )
    instance = instance or next(iter(folders))
    if database is not None or instance not in fleet:
        with as_options(instance="--from", database="--from"):
            instance, database = resolve_database(fleet, instance, database)
    if instance not in folders:
        raise OptionError(
            f"--queue: specify files with the rows of sys.transmission_queue, because the catalog of {instance} is not an instance folder"
        )
    with Instance.open(folders[instance], background=False) as opened:
        if database is None and opened.unavailable_databases:
            name, reason = next(iter(opened.unavailable_databases.items()))
            raise InputError(
                f"the messages of {instance}/{name} cannot be read: {reason}; "
                f"--from {instance}/DATABASE explains those of another database"
            )
        return instance, pa.concat_tables(
            read_slice(each, TRANSMISSION_QUEUE, _ALL_MESSAGES, ["database", *_VIEW_COLUMNS])
            for each in instance_context(opened).databases
            if database in (None, each.name)
        )


def _read(files: Sequence[Path], start: str | None, fleet: Fleet, *, from_target: bool) -> tuple[str, pa.Table]:
    """Returns the instance of the queue, and the needed columns of the files, with the database of each message."""
    from ssbroker.diagnose.stuck_messages import valid_messages  # noqa: PLC0415 - keeps --help fast

    inputs = open_inputs(files, QUEUE_COLUMNS, keep_json_lines=False, threads=1, progress=False)
    given = common_schema(inputs, QUEUE_COLUMNS)
    reject_misspelled(given.names, QUEUE_COLUMNS, files[0])
    schema = pa.schema([field for field in given if field.name in {*QUEUE_COLUMNS.schema.names, _ENQUEUE_TIME}])
    if "to_service_name" not in schema.names:
        expected = "the columns of sys.transmission_queue"
        raise SchemaError(f"{files[0]}: to_service_name: the column is missing; expected {expected}", expected=expected)
    instance, database = _parse_queue(start, fleet, has_databases="database" in schema.names)
    messages = []
    for chunk, _ in all_chunks(inputs):
        batch = conform(chunk.load().batch, schema)
        if from_target:
            batch = add_is_initiator(batch, chunk.file)
        try:
            known = with_known_names(
                pa.Table.from_batches([batch]), "database", [*map(str, fleet[instance].databases["name"].to_pylist())]
            )
            part = _with_database(known, database)
            messages.append(valid_messages(fleet[instance], part))
        except (InputError, SchemaError) as error:
            error.args = (str(error).removeprefix("queue."),)
            raise error_in_file(error, file=chunk.file, row_in_file=chunk.row_in_file) from error
    return instance, pa.concat_tables(messages)


def _parse_queue(start: str | None, fleet: Fleet, *, has_databases: bool) -> tuple[str, str | None]:
    """Returns the instance and the database of the queue; None if the files alone name databases."""
    from ssbroker.diagnose.catalog_rows import MSDB  # noqa: PLC0415 - keeps --help fast
    from ssbroker.diagnose.trace import resolve_database  # noqa: PLC0415 - the same

    instance, database = parse_start(start, fleet)
    if not has_databases:
        require_start(instance, database, fleet, subject="where the messages wait")
    is_in_files = has_databases and database is None
    with as_options(instance="--from", database="--from"):
        instance, found = resolve_database(fleet, instance, MSDB if is_in_files else database)
    return instance, None if is_in_files else found


def _with_database(messages: pa.Table, database: str | None) -> pa.Table:
    """Adds the database of `--from` where the file names no database; refuses rows that name another database."""
    number = messages.schema.get_field_index("database")
    if number < 0:
        return messages.append_column("database", pa.array([database] * messages.num_rows, pa.string()))
    if database is None or logical_type(messages.schema.field(number).type) != pa.string():
        return messages
    named = cast(messages.column(number), pa.string())
    row = pc.index(pc.not_equal(named, database), True).as_py()
    if row >= 0:
        value = named[row].as_py()
        problem = f"{value!r:.80} is not the database of --from, {database!r:.80}"
        raise InputError(
            f"database, row {row}: {problem}; omit the database in --from, or correct the row",
            column="database",
            row=row,
            value=value,
        )
    return with_column(messages, number, pa.field("database", pa.string()), pc.fill_null(named, database))


_ENQUEUE_TIME: Final = "enqueue_time"


def _enqueue_times(messages: pa.Table) -> list[datetime | None]:
    """Returns when each message was enqueued; None if the file does not contain a valid time."""
    if _ENQUEUE_TIME not in messages.schema.names:
        return [None] * messages.num_rows
    column = messages[_ENQUEUE_TIME]
    if pa.types.is_timestamp(column.type):  # Python has no nanoseconds
        column = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False)
    return [_time_of(value) for value in column.to_pylist()]


def _time_of(value: object) -> datetime | None:
    with suppress(ValueError):
        return parse_timestamp(str(value))
    return None


def _has_problem(row: dict[str, Any]) -> bool:
    return row["cause"] is not None or not row["is_sound"]


_SHOWN_GROUPS_MAX: Final = 15
_NO_PROBLEM: Final = (
    "no problem found: the routes are correct, and there is no transmission_status; "
    "a message also waits here until the target acknowledges it"
)


_NOT_FOLLOWED: Final = "there is no transmission_status; a message also waits here until the target acknowledges it"


def print_messages(
    rows: Sequence[dict[str, Any]], times: Sequence[datetime | None], instance: str, console: Console
) -> None:
    """Prints equal rows of `explain_messages` together, the most frequent first; `times` are the times when the messages were enqueued."""
    from ssbroker.diagnose.trace import locations_text  # noqa: PLC0415 - keeps --help fast

    groups: defaultdict[tuple[tuple[str, Any], ...], list[datetime | None]] = defaultdict(list)
    for row, time in zip(rows, times, strict=True):
        groups[tuple(row.items())].append(time)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for group, enqueued in ordered[:_SHOWN_GROUPS_MAX]:
        _print_group(dict(group), enqueued, instance, console)
    if hidden := [len(enqueued) for _, enqueued in ordered[_SHOWN_GROUPS_MAX:]]:
        number = f"{count_of(sum(hidden), 'message')} with {count_of(len(hidden), 'other cause')}"
        print_prose(console, f"and {number}; --json lists all messages\n")
    if assumed := dict.fromkeys(each for row in rows for each in row["assumed_ids"]):
        print_prose(console, f"{restore_spaces(unknown_ids_text(locations_text(assumed)))}\n")
    found = sum(map(_has_problem, rows))
    whole = count_of(len(rows), "message")
    result = f"A problem was found for {found:,} of {whole}." if found else f"No problem was found for {whole}."
    if lost := sum(not row["is_followed"] and not _has_problem(row) for row in rows):
        name = "other message" if found else "message"
        result += f" {count_of(lost, name)} could be followed only to an address of no known instance."
    print_prose(console, result if rows else "The transmission queue is empty.")


def _print_group(row: dict[str, Any], times: list[datetime | None], instance: str, console: Console) -> None:
    from ssbroker.diagnose.findings import CODES  # noqa: PLC0415 - keeps --help fast

    oldest = min((time for time in times if time is not None), default=None)
    age = "" if oldest is None else f", the oldest from {oldest:%Y-%m-%d %H:%M:%S} UTC"
    where = f"{instance}/{row['database']} for {quoted_name(row['to_service_name'])}"
    colour = "green" if row["is_followed"] and not _has_problem(row) else "yellow" if row["is_sound"] else "red"
    print_prose(console, f"{count_of(len(times), 'message')} in {where}{age}", colour)
    print_prose(console, f"  => {row['end']}")
    if row["transmission_status"]:
        print_prose(console, f"  transmission_status: {_shortened(row['transmission_status'])}")
    if row["code"] is not None:
        print_prose(console, f"  {row['code']}: {CODES[row['code']].title}\n  {CODES[row['code']].why}")
    nothing_found = _NO_PROBLEM if row["is_followed"] else _NOT_FOLLOWED
    if cause := row["cause"] if _has_problem(row) else nothing_found:
        print_prose(console, f"  - {cause}")
    if row["remedy"] is not None:
        print_prose(console, f"{'    ' if cause else '  - '}{row['remedy']}", "dim")
    print_prose(console, "")


_STATUS_LENGTH_MAX: Final = 500
_SENTENCE_END: Final = re.compile(r"[.;] (?=[A-Z][a-z])")  # statements in T-SQL begin with a word in upper case


def _shortened(status: str) -> str:
    """Returns a status on one line; a very long one ends after a sentence, so that statements in it are not cut."""
    line = " ".join(status.split())
    if len(line) <= _STATUS_LENGTH_MAX:
        return line
    ends = [found.start() + 1 for found in _SENTENCE_END.finditer(line, 0, _STATUS_LENGTH_MAX)]
    return f"{line[: ends[-1]]} ..." if ends else one_line(line)
