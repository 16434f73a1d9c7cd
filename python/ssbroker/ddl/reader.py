"""Reads scripts into catalog tables by running their statements on a model of an instance."""

from __future__ import annotations

import pickle
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arguments import utc_datetime
from ssbroker.ddl import script_notes
from ssbroker.ddl.annotations import parse_list
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.expressions import Row, folded
from ssbroker.ddl.lexer import ScriptBatch, ScriptPosition, ScriptSource, batches, decode
from ssbroker.ddl.model import (
    FIRST_ROUTE_ID,
    ROUTE_ID_MAX,
    InstanceModel,
    NamedDatabases,
    ObjectKind,
    listener_addresses,
    run,
)
from ssbroker.ddl.parser import ParsedBatch, parse
from ssbroker.ddl.script_notes import Remark, ScriptNote
from ssbroker.ddl.script_runner import ScriptRunner
from ssbroker.ddl.sqlcmd import substitute
from ssbroker.ddl.statements import CreateDatabase, Statement, walk
from ssbroker.exceptions import DdlError, DdlWarning

_SERVER_HOST: Final = re.compile(
    r"(?:tcp:)?(?P<host>(?!localhost\b)[a-z0-9](?:[a-z0-9_.-]*[a-z0-9])?)(?:\\[^,]*)?(?:,\d+)?",
    re.IGNORECASE | re.ASCII,
)
"""The host in the name of a server: `HOST`, `HOST\\INSTANCE`, `tcp:HOST,1433`."""
REPETITIONS_MAX: Final = 1000
"""The maximum number of times that a batch runs, whatever the count of its GO; more repetitions would not change the objects."""


@dataclass(frozen=True)
class ScriptTables:
    """The result of running a script: the arguments of `Catalog`."""

    routes: pa.Table
    """The routes (`schemas.ROUTES`), in order of creation."""
    databases: pa.Table
    """All databases (`schemas.DATABASES`), including msdb."""
    services: pa.Table
    """The services (`schemas.SERVICES`), in order of creation."""
    addresses: tuple[str, ...]
    """The instance's addresses, as far as the script specifies them."""
    message_forwarding: bool
    pending_requests: tuple[str, ...]
    positions: Mapping[tuple[ObjectKind, str, str], ScriptPosition] = field(default_factory=dict, compare=False)
    """The positions of statements, as in `InstanceModel`."""
    notes: tuple[ScriptNote, ...] = field(default=(), compare=False)
    """The statements and clauses that were not executed."""
    model: InstanceModel | None = field(default=None, compare=False)
    """All objects that the script created, in more detail than the tables."""


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """How scripts are read.

    Attributes:
        variables: Values of sqlcmd variables, by name in lower case.
        encoding: The encoding of scripts without a byte order mark; None means UTF-8.
        lenient: Whether refused statements become notes, database names may look like misspellings of names that a script
            creates, an endpoint may be altered that no script creates, and scripts may be without Service Broker
            statements. An instance skips only statements that do not exist in T-SQL, and accepts such scripts.
        collects: Whether all errors become notes, also those of sqlcmd commands and encodings.
        any_order: Whether the scripts are the files of a folder: each file starts in the default database, and may need
            objects that later files create.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    encoding: str | None = None
    lenient: bool = False
    collects: bool = False
    any_order: bool = False

    def read_file(self, path: Path) -> str:
        """Returns the text of a script."""
        if path.exists() and not path.is_file():
            raise OSError(0, "not a regular file")
        return decode(path.read_bytes(), file=str(path), encoding=self.encoding)


STRICT: Final = ScriptOptions()
"""How scripts are read by default."""


def read(text: str, *, now: datetime, file: str | None = None, options: ScriptOptions = STRICT) -> ScriptTables:
    """Reads a DDL script.

    The script runs on a model of an instance. Databases that it uses but does not create are assumed to exist already,
    with the route AutoCreatedLocal, an enabled broker and an unknown broker id. `USE master` alone does not add the
    database. Statements before any `USE` belong to the only user database of the script, or to a database named `user`.

    Conditions are decided by the objects that the script has created so far, and dynamic SQL in EXEC runs if the script
    determines its text. `notes` lists what is not executed.

    The port and IP address of an endpoint determine the instance's addresses: with `LISTENER_IP = ALL`, the addresses
    of the loopback interface, because a script does not know its host. A comment such as `-- ssbroker:
    addresses=TCP://host:4022` adds other addresses.

    LIFETIME counts from `now`, which must have a time zone. Errors and warnings name `file`.

    Raises:
        DdlError: SQL Server would refuse a statement, or a statement cannot be parsed; with file, line and error number.

    Warns:
        DdlWarning: Statements were skipped; with file and line, or the number of statements.

    Examples:
        >>> from datetime import UTC, datetime
        >>> script = read("USE Sales; CREATE QUEUE Q; CREATE SERVICE [//A/B] ON QUEUE Q;", now=datetime(2026, 11, 20, tzinfo=UTC))
        >>> script.services.to_pylist()
        [{'database': 'Sales', 'name': '//A/B'}]
        >>> script.routes["name"].to_pylist()
        ['AutoCreatedLocal', 'AutoCreatedLocal']
    """
    return _only_instance(read_servers([(text, file)], now=now, options=options), options)


class ScriptStart:
    """A script that is read once, and continued by other scripts.

    Examples:
        >>> from datetime import UTC, datetime
        >>> start = ScriptStart("CREATE DATABASE Sales", now=datetime(2026, 11, 20, tzinfo=UTC))
        >>> start.tables_after("USE Sales; CREATE ROUTE Any WITH ADDRESS = 'LOCAL'").routes["name"].to_pylist()
        ['AutoCreatedLocal', 'Any', 'AutoCreatedLocal']
        >>> start.tables_after("USE Sales; DROP ROUTE AutoCreatedLocal").routes["database"].to_pylist()
        ['msdb']
    """

    def __init__(self, text: str, *, now: datetime) -> None:
        server = _Server.start(utc_datetime(now), STRICT)
        server.run_text(text)
        self._server: Final = pickle.dumps(server)

    def tables_after(self, *texts: str) -> ScriptTables:
        """Runs scripts after this one; raises and warns like `read`, without file names."""
        server: _Server = pickle.loads(self._server)  # noqa: S301 - a copy, faster than deepcopy
        for text in texts:
            server.run_text(text)
        return _only_instance({None: server.finish(ScriptPosition(None, 1), STRICT, address=None)}, STRICT)


def _only_instance(servers: dict[str | None, ScriptTables], options: ScriptOptions) -> ScriptTables:
    tables, *others = servers.values()
    if others:
        names = ", ".join(str(one) for one in servers if one is not None)
        raise DdlError(
            f"the script connects to several instances with :connect ({names}); read the script with Fleet.load, "
            "or with `ssbroker lint`, `trace`, `stuck` or `compare`"
        )
    if not options.collects:
        for line in script_notes.summary(tables.notes, about="routing"):
            # Points to the caller of `read`.
            warnings.warn(line, DdlWarning, stacklevel=3)
    return tables


def read_servers(
    scripts: Iterable[tuple[str | DdlError, str | None]], *, now: datetime, options: ScriptOptions
) -> dict[str | None, ScriptTables]:
    """Reads scripts with `:connect`; returns the tables of each instance by the name of its server, in order of connection.

    Each script is a pair of its text (or the reason why it cannot be read) and its file. The instance of the statements
    before the first `:connect` has the name None; it is omitted if there are no such statements.
    """
    given = list(scripts)
    sources = _sources(given, options)
    servers = _Servers(utc_datetime(now), options, [source for source, _ in sources])
    for source, errors in sources:
        for server in servers.known.values():
            server.start_file(options)
        try:
            for batch in batches(source):
                is_empty = not batch.tokens and not batch.annotations
                if is_empty and batch.server is None and len(sources) == 1:
                    continue
                servers.named(batch.server).run(source, batch, errors)
                errors.clear()
            if errors:
                servers.named(None).report(errors)
        except DdlError as error:  # such as an unclosed quotation mark: the start of the next statement is unknown
            if not options.collects:
                raise
            last = None if not servers.known else next(reversed(servers.known))
            servers.named(last).runner.report(error)
    known = servers.known or {None: servers.named(None)}
    first = ScriptPosition(given[0][1] if given else None, 1)
    named = {name: server.named_address(name) for name, server in known.items()}
    # Two instances on one host cannot listen on the same port, so at least one of the scripts is not about this host.
    taken = Counter(named.values())
    return {
        name: server.finish(first, options, address=named[name] if taken[named[name]] == 1 else None)
        for name, server in known.items()
    }


class _Servers:
    """The servers of scripts, in order of connection.

    Args:
        now: The time from which LIFETIME counts.
        options: How the scripts are read.
        sources: All scripts.

    Attributes:
        known: The servers by name; the name None is the server before the first `:connect`.
    """

    def __init__(self, now: datetime, options: ScriptOptions, sources: Sequence[ScriptSource]) -> None:
        self.known: Final[dict[str | None, _Server]] = {}
        self._now: Final = now
        self._options: Final = options
        self._databases: Final = _named_databases(sources)
        self._announced: Final[dict[str, list[str]]] = {}
        for source in sources if options.any_order else ():
            for server_name, database in _created_databases(source):
                self._announced.setdefault(server_name, []).append(database)

    def named(self, name: str | None) -> _Server:
        """Returns the server with a name, which is added at its first use; case is ignored."""
        key = folded(name or "")
        known = next((one for one in self.known if folded(one or "") == key), name)
        if known not in self.known:
            self.known[known] = server = _Server.start(self._now, self._options)
            server.target.instance.named = self._databases.get(key, NamedDatabases())
            if self._options.any_order:
                server.target.instance.announce(self._announced.get(key, ()))
                server.start_file(self._options)
        return self.known[known]


def _sources(
    scripts: Sequence[tuple[str | DdlError, str | None]], options: ScriptOptions
) -> list[tuple[ScriptSource, list[DdlError | ScriptNote]]]:
    """Returns the scripts, with variables and included files, but without scripts that other scripts include; databases are created first."""
    included: set[Path] = set()
    found: list[tuple[ScriptSource, list[DdlError | ScriptNote]]] = []
    for text, file in scripts:
        if isinstance(text, DdlError):
            found.append((ScriptSource("", file), [text]))
            continue
        errors: list[DdlError | ScriptNote] = []
        own: set[Path] = set()
        source = substitute(
            text,
            file,
            variables=options.variables,
            read_file=options.read_file,
            included=own,
            report=errors.append if options.collects else None,
        )
        errors += [note for path in sorted(own) if (note := _outside(path, file)) is not None]
        included |= own
        found.append((source, errors))
    if not options.any_order:
        return found
    kept = [one for one in found if one[0].file is None or Path(one[0].file).resolve() not in included]
    return [kept[index] for index in _order([source.text for source, _ in kept])]


def _outside(path: Path, file: str | None) -> ScriptNote | None:
    """Returns a note if an included file is outside the folder of the script; otherwise None."""
    if file is None or path.is_relative_to(Path(file).resolve().parent):
        return None
    return ScriptNote(
        "ignored", ":r", f"included {path}, which is outside the folder of the script", ScriptPosition(file, 1)
    )


_NAME: Final = r"(?:\[((?:[^\]]|\]\])+)\]|\"([^\"]+)\"|([\w#@$]+))"
_CREATES: Final = re.compile(rf"\b(?:CREATE|RESTORE)\s+DATABASE\s+{_NAME}", re.IGNORECASE)
_USES: Final = re.compile(rf"\bUSE\s+{_NAME}", re.IGNORECASE)


def _created_databases(source: ScriptSource) -> Iterator[tuple[str, str]]:
    """Yields the folded server name and the name of each database that a script creates, ignoring comments and texts of EXEC."""
    if _CREATES.search(source.text) is None:
        return
    try:
        for batch in batches(source):
            for one in walk(parse(source, batch, report=lambda _: None).statements):
                if isinstance(one.statement, CreateDatabase):
                    yield folded(batch.server or ""), one.statement.name
    except DdlError:  # reported when the script runs
        return


_ASKS_FOR_DATABASE: Final = re.compile(r"\bDB_ID\b|\b(?:sys)?databases\b", re.IGNORECASE)
_NAMES_CREATED: Final = re.compile(
    rf"\b(?:(?:CREATE|RESTORE|DROP)\s+DATABASE\s+(?:IF\s+EXISTS\s+)?|MODIFY\s+NAME\s*=\s*){_NAME}", re.IGNORECASE
)
_NAMES_USED: Final = re.compile(rf"\b(?:USE|ALTER\s+DATABASE(?!\s+CURRENT\b))\s+{_NAME}", re.IGNORECASE)


def _named_databases(sources: Sequence[ScriptSource]) -> dict[str, NamedDatabases]:
    """Returns the databases that scripts name in statements and texts, by folded server name; nothing if no script has conditions about databases."""
    words: dict[str, list[str]] = {}
    for source in sources if any(_ASKS_FOR_DATABASE.search(source.text) for source in sources) else ():
        with suppress(DdlError):  # reported when the script runs
            for batch in batches(source):  # without comments
                server = words.setdefault(folded(batch.server or ""), [])
                server += (source.text[token.start : token.end] for token in batch.tokens)
    return {
        server: NamedDatabases(
            created=frozenset(folded("".join(match)) for match in _NAMES_CREATED.findall(" ".join(found))),
            used={folded("".join(match)): "".join(match) for match in _NAMES_USED.findall(" ".join(found))},
        )
        for server, found in words.items()
    }


def _order(texts: Sequence[str]) -> list[int]:
    """Returns the order of scripts: first scripts that create or restore databases, each before scripts that use them; otherwise, the given order."""
    creates = [{folded("".join(match)) for match in _CREATES.findall(text)} for text in texts]
    creators = [index for index, names in enumerate(creates) if names]
    uses = [{folded("".join(match)) for match in _USES.findall(text)} for text in texts]
    order: list[int] = []
    waiting: set[int] = set()

    def place(index: int) -> None:
        if index in order or index in waiting:
            return
        waiting.add(index)
        for other in creators:
            if creates[other] & (uses[index] - creates[index]):
                place(other)
        order.append(index)

    for index in creators:
        place(index)
    return order + [index for index, names in enumerate(creates) if not names]


@dataclass
class _ModelTarget:
    """A model of an instance as the target of a script."""

    instance: InstanceModel

    @property
    def current(self) -> str | None:
        return self.instance.current

    def run(self, statement: Statement, annotations: Mapping[str, str], position: ScriptPosition) -> Remark | None:
        remark = run(self.instance, statement, annotations)
        self.instance.record_position(statement, position)
        return remark

    def restore(self, current: str | None) -> None:
        self.instance.current = current

    def assume_database(self, name: str) -> None:
        self.instance.assume_database(name)
        self.instance.current = name

    def rows(self, view: str, database: str | None) -> Iterable[Row] | None:
        return self.instance.rows(view, database)


@dataclass
class _Server:
    """The state of an instance that scripts describe."""

    target: _ModelTarget
    runner: ScriptRunner

    @classmethod
    def start(cls, now: datetime, options: ScriptOptions) -> _Server:
        instance = InstanceModel(now, lenient=options.lenient)
        runner = ScriptRunner(
            lenient=options.lenient, collects=options.collects or options.lenient, any_order=options.any_order
        )
        return cls(_ModelTarget(instance), runner)

    def start_file(self, options: ScriptOptions) -> None:
        """Starts a file of a folder in a new session, as sqlcmd does."""
        if options.any_order:
            self.target.instance.select_default_database()
            self.runner.start_session()

    def run_text(self, text: str) -> None:
        """Runs a script without sqlcmd commands."""
        source = ScriptSource(text, None)
        for batch in batches(source):
            self.run(source, batch, ())

    def report(self, errors: Sequence[DdlError | ScriptNote]) -> None:
        """Adds the notes of errors that were found before the script ran."""
        for error in errors:
            if isinstance(error, DdlError):
                self.runner.report(error)
            else:
                self.runner.notes.append(error)

    def run(self, source: ScriptSource, batch: ScriptBatch, errors: Sequence[DdlError | ScriptNote]) -> None:
        self.report(errors)
        parsed = self.runner.parse(source, batch)
        for repetition in range(min(batch.count, REPETITIONS_MAX)):
            if not self.runner.run(self.target, source, parsed, is_repeated=repetition > 0):
                break
        self._apply_annotations(source, parsed)

    def _apply_annotations(self, source: ScriptSource, batch: ParsedBatch) -> None:
        for position, key, value in batch.instance_annotations:
            try:
                values = parse_list(value)
            except RefusalError as refusal:
                raise source.error(position, refusal.reason) from None
            if key == "sqlcmd":
                continue
            if key == "addresses":
                self.target.instance.addresses.extend(filter(None, values))
            elif key == "unused":
                self.target.instance.add_unused(filter(None, values))
            else:
                self.target.instance.pending_requests.extend(values)

    def named_address(self, name: str | None) -> str | None:
        """Returns the address of the endpoint on the host that `:connect` names; None if the address is not known."""
        host = None if name is None else _SERVER_HOST.fullmatch(name)
        endpoint = self.target.instance.endpoint
        if host is None or endpoint is None or endpoint.addresses is not None or endpoint.settings.port is None:
            return None
        return f"TCP://{host['host'].lower()}:{endpoint.settings.port}"

    def finish(self, start: ScriptPosition, options: ScriptOptions, *, address: str | None) -> ScriptTables:
        self.target.instance.finish_files()
        self.runner.run_deferred(self.target)
        is_unreadable = any(note.kind == "unreadable" for note in self.runner.notes)
        if not (self.runner.seen_count or is_unreadable or options.lenient):
            self.runner.note_empty(start)
        self.target.instance.database("msdb")
        self.runner.notes.extend(self.target.instance.broker_notes())
        return _script_tables(self.target.instance, self.runner.notes, address=address)


def _script_tables(instance: InstanceModel, notes: Iterable[ScriptNote], *, address: str | None) -> ScriptTables:
    endpoint = instance.endpoint
    listed: tuple[str, ...] = ()
    if endpoint is not None:
        settings = endpoint.settings
        listed = (
            endpoint.addresses if endpoint.addresses is not None else listener_addresses(settings.port, settings.ip)
        )
        listed += () if address is None else (address,)
    return ScriptTables(
        routes=_routes_table(instance),
        databases=pa.Table.from_pydict(
            {
                "name": list(instance.databases),
                "service_broker_guid": [database.guid for database in instance.databases.values()],
                "is_broker_enabled": [database.is_delivering for database in instance.databases.values()],
            },
            schema=schemas.DATABASES,
        ),
        services=pa.Table.from_pydict(
            {
                "database": [database for database, _ in instance.services],
                "name": [name for _, name in instance.services],
            },
            schema=schemas.SERVICES,
        ),
        addresses=tuple(dict.fromkeys([*listed, *instance.addresses])),
        message_forwarding=endpoint is not None and bool(endpoint.settings.forwarding),
        pending_requests=tuple(instance.pending_requests),
        positions=instance.positions,
        notes=tuple(notes),
        model=instance,
    )


def _routes_table(instance: InstanceModel) -> pa.Table:
    routes = instance.routes.values()
    columns: dict[str, list[Any]] = {
        "database": [database for database, _ in instance.routes],
        "name": [name for _, name in instance.routes],
        "route_id": _route_ids(instance),
        "remote_service_name": [route.service_name for route in routes],
        "broker_instance": [route.broker_instance for route in routes],
        "lifetime": [route.lifetime for route in routes],
        "address": [route.address for route in routes],
        "mirror_address": [route.mirror_address for route in routes],
    }
    return pa.Table.from_pydict(columns, schema=schemas.ROUTES)


def _route_ids(instance: InstanceModel) -> list[int]:
    """Returns the route ids; routes without an annotated id get ids after the highest id in their database."""
    highest: dict[str, int] = {}
    for (database, _), route in instance.routes.items():
        highest[database] = max(highest.get(database, FIRST_ROUTE_ID - 1), route.route_id or 0)
    ids = []
    for (database, _), route in instance.routes.items():
        if route.route_id is None:
            if highest[database] == ROUTE_ID_MAX:
                raise DdlError(
                    f"the database {database}: no route id is left after {ROUTE_ID_MAX}; annotate each route with its route_id"
                )
            highest[database] += 1
        ids.append(highest[database] if route.route_id is None else route.route_id)
    return ids
