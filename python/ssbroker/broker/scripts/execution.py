"""Runs T-SQL scripts on an instance, each batch in one transaction."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ssbroker.broker import database_lifecycle
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.instance_transaction import InstanceTransaction
from ssbroker.broker.scripts.instance_script_target import InstanceScriptTarget, drop_endpoint
from ssbroker.broker.scripts.object_comparison import (
    Described,
    ObjectChange,
    describe_database,
    describe_endpoint,
    object_changes,
)
from ssbroker.ddl import statements
from ssbroker.ddl.lexer import ScriptBatch, ScriptSource, batches
from ssbroker.ddl.parser import ParsedBatch
from ssbroker.ddl.reader import REPETITIONS_MAX, STRICT, ScriptOptions
from ssbroker.ddl.script_notes import ScriptNote
from ssbroker.ddl.script_runner import EMPTY, ScriptRunner
from ssbroker.ddl.sqlcmd import substitute
from ssbroker.ddl.statements import walk
from ssbroker.exceptions import DdlError, InputError, SsbrokerError
from ssbroker.protocol.broker_errors import DATABASE_EXISTS
from ssbroker.store.database_registry import MSDB_NAME


def execute(
    instance: InstanceContext, text: str, *, file: str | None, options: ScriptOptions = STRICT
) -> list[ScriptNote]:
    """Runs a script; returns what was not executed. Until the first USE, the script applies to the only user database."""
    run = _Execution(instance, options, database=None)
    run.script(text, file, may_be_empty=options.lenient)
    return run.runner.notes


def read_script(path: Path, options: ScriptOptions) -> str:
    """Reads a script file, in the encoding of its byte order mark, or otherwise in the encoding of the options."""
    try:
        return options.read_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}", value=str(path)) from error


class ScriptSession:
    """Runs statements one after the other, in the database that the last USE selected.

    Args:
        instance: The instance.
        options: How scripts are read.
    """

    def __init__(self, instance: InstanceContext, options: ScriptOptions = STRICT) -> None:
        self._instance: Final = instance
        self._options: Final = options
        self._selected: str | None = None

    @property
    def database(self) -> str | None:
        """The current database: the selected database, or the only user database; None if there are several or none."""
        names = [database.name for database in self._instance.databases]
        if self._selected in names:
            return self._selected
        users = [name for name in names if name != MSDB_NAME]
        return users[0] if len(users) == 1 else None

    def execute(self, text: str) -> list[ScriptNote]:
        """Runs a script, which need not contain Service Broker statements; returns what was not executed."""
        return self._execute(text, None, may_be_empty=True)

    def execute_file(self, path: Path) -> list[ScriptNote]:
        """Runs a script file; returns what was not executed."""
        return self._execute(read_script(path, self._options), str(path), may_be_empty=self._options.lenient)

    def _execute(self, text: str, file: str | None, *, may_be_empty: bool) -> list[ScriptNote]:
        run = _Execution(self._instance, self._options, database=self.database)
        try:
            run.script(text, file, may_be_empty=may_be_empty)
        finally:
            self._selected = run.database
        return run.runner.notes


def ensure(
    instance: InstanceContext, text: str, *, file: str | None, options: ScriptOptions = STRICT
) -> tuple[tuple[ObjectChange, ...], list[ScriptNote]]:
    """Makes the objects match a script, in one transaction; returns what has changed, and what was not executed."""
    while True:
        known = {database.name for database in instance.databases}
        try:
            return _ensure(instance, text, file, options)
        except DdlError as error:
            # Another process has created the same database meanwhile.
            if error.number != DATABASE_EXISTS or known == {database.name for database in instance.databases}:
                raise


def _empty_script(folder: Path) -> str:
    query = f"ssbroker sql {shlex.quote(str(folder))} --query"
    return (
        f"the script {EMPTY}; scripts do not execute SELECT (use `{query}`), BEGIN DIALOG, SEND or RECEIVE "
        "(use a transaction in Python); use lenient (--lenient) to accept such a script"
    )


def _ensure(
    instance: InstanceContext, text: str, file: str | None, options: ScriptOptions
) -> tuple[tuple[ObjectChange, ...], list[ScriptNote]]:
    runner = ScriptRunner(lenient=options.lenient)
    source = substitute(text, file, variables=options.variables, read_file=options.read_file)
    parsed = []
    for batch in batches(source):
        if batch.server is not None:
            raise source.error(
                batch.connect_offset,
                f":connect {batch.server}: ensure changes a single instance and cannot connect to another; remove the command",
            )
        parsed.append(_parse(runner, source, batch))
    differing: list[ObjectChange] = []
    with InstanceTransaction(instance) as transaction:
        target = InstanceScriptTarget(instance, transaction, None, differing=differing)
        # Which database a batch changes depends on the USE statements in earlier batches.
        names: set[str] = set()
        current: str | None = None
        for one in parsed:
            names.update(_changed_databases(one, target, current=current))
            current = next(
                (
                    target.resolve(each.statement.name)
                    for each in reversed([*walk(one.statements)])
                    if isinstance(each.statement, statements.UseDatabase)
                ),
                current,
            )
        transaction.lock(names)
        before = _describe_instance(transaction)
        for one in parsed:
            runner.run(target, source, one)
        if not runner.seen_count and not options.lenient:
            raise source.error(0, _empty_script(instance.folder))
        after = _describe_instance(transaction)
    changed: list[ObjectChange] = []
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            changed.append(ObjectChange("dropped", "database", name, None))
            continue
        changed += object_changes(before.get(name, {}), after[name], database=name)
    return (*changed, *differing), runner.notes


def _describe_instance(transaction: InstanceTransaction) -> dict[str, Described]:
    """Returns the objects of all databases within a transaction, and the endpoint."""
    found: dict[str, Described] = {}
    for name in transaction.names:
        objects = transaction.visible_objects(transaction.database(name))
        found[name] = describe_database(objects)
        if name == MSDB_NAME:
            found[name] |= describe_endpoint(objects.endpoint)
    return found


class _Execution:
    """The run of a script on an instance, batch by batch."""

    def __init__(self, instance: InstanceContext, options: ScriptOptions, *, database: str | None) -> None:
        self.runner: Final = ScriptRunner(lenient=options.lenient)
        self.database = database
        """The database that USE selected."""
        self._instance: Final = instance
        self._options: Final = options
        self._created: Final[set[int]] = set()
        """The ids of the databases that the script created; their names may change."""
        self._created_endpoint: str | None = None
        self._had_endpoint: Final = instance.msdb.objects().endpoint is not None
        """Whether the instance had an endpoint before the script; then an endpoint that the script creates is kept after a failure."""
        self._created_files: Final[list[Path]] = []
        self._last_line = 0
        """The last line of the script whose batch was committed."""
        # Changes are announced at the end, because an announcement rereads all objects, which is too slow after each of
        # thousands of batches.
        self._changed: Final[set[DatabaseContext]] = set()

    def script(self, text: str, file: str | None, *, may_be_empty: bool) -> None:
        """Runs a script; raises an error if it has no Service Broker statement, unless `may_be_empty`."""
        options = self._options
        source = substitute(text, file, variables=options.variables, read_file=options.read_file)
        try:
            self._batches(source, may_be_empty=may_be_empty)
        except BaseException as error:
            effect = self._remove_created()
            if effect and isinstance(error, SsbrokerError):
                error.args = (f"{error}; {effect}",)
            raise
        finally:
            self._announce()

    def _batches(self, source: ScriptSource, *, may_be_empty: bool) -> None:
        for batch in batches(source):
            if batch.server is not None:
                raise source.error(
                    batch.connect_offset,
                    f":connect {batch.server}: a script runs on one instance; put the statements of each server into a script "
                    "of its own, and run each on its instance",
                )
            self._batch(source, batch)
        if not self.runner.seen_count and not may_be_empty:
            raise source.error(0, _empty_script(self._instance.folder))

    def _batch(self, source: ScriptSource, batch: ScriptBatch) -> None:
        """Runs a batch as many times as its GO says, each time in one transaction."""
        parsed = _parse(self.runner, source, batch)
        for repetition in range(min(batch.count, REPETITIONS_MAX)):
            with InstanceTransaction(self._instance, changed=self._changed) as transaction:
                target = InstanceScriptTarget(self._instance, transaction, self.database)
                names = set(_changed_databases(parsed, target))
                transaction.lock(names)
                has_run = self.runner.run(target, source, parsed, is_repeated=repetition > 0)
                created, files = transaction.created, transaction.created_files
            self._created.update(created)
            self._created_files.extend(files)
            self._created_endpoint = transaction.created_endpoint or self._created_endpoint
            self.database = target.current
            if parsed.statements:
                self._last_line = source.line(parsed.statements[-1].end - 1)
            if not has_run:
                break

    def _remove_created(self) -> str | None:
        """Removes the databases, the endpoint and the files that the script created.

        Returns:
            What remains in effect; None if nothing remains.
        """
        created = sorted(one.name for one in self._instance.databases if one.database_id in self._created)
        if not self._last_line or not (self._changed or created):
            return None
        effect = f"the batches up to line {self._last_line} remain in effect"
        removed = [f"database {name!r}" for name in created]
        files = {f"file {str(file)!r}": file for file in self._created_files}
        try:
            with InstanceTransaction(self._instance, changed=self._changed) as transaction:
                for name in created:
                    database_lifecycle.detach(transaction, name, is_dropped=True)
                endpoint = None if self._had_endpoint else self._created_endpoint
                if endpoint is not None and drop_endpoint(transaction, endpoint):
                    removed.append(f"endpoint {endpoint!r}")
        except (SsbrokerError, OSError) as error:
            return (
                f"{effect}, and what the script created ({', '.join([*removed, *files])}) could not be removed: {error}"
            )
        remaining: list[str] = []
        for name, file in files.items():
            try:
                file.unlink(missing_ok=True)
                removed.append(name)
            except OSError as error:
                remaining.append(f"{name} could not be removed: {error.strerror or error}")
        if removed:
            effect = (
                f"what the script created was removed again ({', '.join(removed)}); "
                f"all other changes up to line {self._last_line} remain in effect"
            )
        return "; ".join([effect, *remaining])

    def _announce(self) -> None:
        """Notifies the instance of the databases that have changed."""
        for database in self._instance.databases:
            if database in self._changed:
                self._instance.listener.changed(database)


def _parse(runner: ScriptRunner, source: ScriptSource, batch: ScriptBatch) -> ParsedBatch:
    """Parses a batch, and reports annotations that do not apply to an instance."""
    parsed = runner.parse(source, batch)
    for position, key, _ in parsed.instance_annotations:
        text = "skipped (an instance determines this value itself)"
        runner.notes.append(ScriptNote("ignored", f"the annotation {key}", text, source.position(position)))
    return parsed


def _changed_databases(
    batch: ParsedBatch, target: InstanceScriptTarget, *, current: str | None = None
) -> Iterator[str]:
    """Yields the databases that a batch changes, as far as known in advance; `current` is the current database after the earlier batches."""
    current = current or target.current or target.only_database or ""
    for parsed in walk(batch.statements):
        match parsed.statement:
            case statements.UseDatabase(name):
                current = target.resolve(name)
            case statements.AlterDatabase(name=name):
                yield current if name is None else target.resolve(name)
            case statements.DropDatabase(names):
                yield from map(target.resolve, names)
            case statements.CreateQueue(queue) | statements.AlterQueue(queue) | statements.DropQueue(queue):
                yield current if queue.database is None else target.resolve(queue.database)
            case _ if parsed.verb not in (None, "CREATE DATABASE", "RESTORE DATABASE"):
                yield current
