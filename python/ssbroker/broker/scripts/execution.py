"""Runs a script of DDL on an instance, batch by batch; each whole or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ssbroker.broker.databases.alteration import Alteration
from ssbroker.broker.scripts.script import Script
from ssbroker.ddl import decode, statements
from ssbroker.ddl.instance import canonical
from ssbroker.ddl.parse import Parsed, ParsedBatch, parse
from ssbroker.ddl.source import RefusalError, Source, refusal_text
from ssbroker.ddl.tokens import batches
from ssbroker.exceptions import BrokerError, DdlError, DdlWarning, InputError, StorageError, UnknownDatabaseError

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance


def execute(instance: Instance, text: str, *, file: str | None) -> None:
    """Runs a script; before any USE it is about the one user database."""
    source = Source(text, file)
    current: str | None = None
    done = 0  # the last line of what stands, whatever comes
    # Told at the end: what is told has all objects read again, which after each of thousands of batches took longer than they did.
    changed: set[Database] = set()
    try:
        for batch in batches(source):
            parsed = parse(source, batch, reading="objects")
            # The second run says all that further ones would: what it makes is there already.
            for turn in range(min(batch.count, 2)):
                current, skipped = _run_batch(instance, source, parsed, current, changed)
                if parsed.statements:
                    done = source.line(parsed.statements[-1].end - 1)
                if turn == 0:
                    for what in skipped:
                        warnings.warn(what, DdlWarning, stacklevel=3)  # the caller of Instance.execute
    except DdlError as error:
        if not done:
            raise
        words = f"{error}; what stands up to line {done} is done"
        raise DdlError(words, number=error.number, file=error.file, line=error.line) from None
    finally:
        for database in instance.databases:
            if database in changed:
                instance.objects_changed(database)


def execute_file(instance: Instance, path: Path) -> None:
    """Runs the script in a file: UTF-8, or what its byte order mark says.

    Args:
        instance: The instance.
        path: The file.

    Raises:
        DdlError: A statement is refused, or cannot be read; with file, line and number.
        StorageError: A statement met with a database file that cannot be used; the words say on which line it stands.
        InputError: The file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}", value=str(path)) from error
    execute(instance, decode(data, file=str(path)), file=str(path))


def _run_batch(
    instance: Instance, source: Source, batch: ParsedBatch, current: str | None, changed: set[Database]
) -> tuple[str | None, list[str]]:
    """The database that is current afterwards, and what was left out of account."""
    skipped = [
        f"{source.place(position)}: the annotation {key} means nothing to an instance, which knows by itself"
        for position, key, _ in batch.instance
    ]
    with Alteration(instance, changed=changed) as alteration:
        script = Script(instance, alteration, current)
        alteration.lock(_touched(batch, script))
        for parsed in batch.statements:
            left_out = _run(source, script, parsed)
            if left_out is not None:
                skipped.append(f"{source.place(parsed.start)}: {parsed.subject}: {left_out}")
    return script.current, skipped


def _run(source: Source, script: Script, parsed: Parsed) -> str | None:
    try:
        return script.run(parsed.statement, parsed.annotations)
    except RefusalError as refusal:
        reason, number = refusal.reason, refusal.number
    except BrokerError as error:
        reason, number = str(error).removeprefix(f"{error.number}: "), error.number
    except UnknownDatabaseError as error:
        reason, number = str(error), 911
    except StorageError as error:
        words = refusal_text(str(error), subject=parsed.subject, number=None)
        raise type(error)(f"{source.place(parsed.start)}: {words}", file=error.file) from error
    raise source.error(parsed.start, reason, subject=parsed.subject, number=number)


def _touched(batch: ParsedBatch, script: Script) -> Iterator[str]:
    """The databases that a batch changes, as far as can be told before."""
    current = script.current
    for parsed in batch.statements:
        match parsed.statement:
            case statements.UseDatabase(name):
                current = canonical(name)
            case statements.AlterDatabase(name=name):
                yield current or "" if name is None else canonical(name)
            case statements.DropDatabase(names):
                yield from names
            case statements.CreateQueue(queue) | statements.AlterQueue(queue) | statements.DropQueue(queue):
                yield queue.database or current or script.only_database or ""
            case statements.Skipped() | statements.CreateDatabase():
                pass
            case _:
                yield current or script.only_database or ""
