"""The interactive shell of `ssbroker sql`."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from ssbroker._arrow import guid_text
from ssbroker._text import count_of, did_you_mean, terminal_safe
from ssbroker.broker.instance import instance_context
from ssbroker.broker.overview import overview_of
from ssbroker.broker.scripts import ScriptSession
from ssbroker.cli import state_tables
from ssbroker.cli.sql_input import is_command, is_complete, open_transaction, pieces
from ssbroker.cli.sql_query import (
    Rows,
    objects_as_rows,
    read_object,
    readable_objects,
    result_table,
    rows_as_json,
    run_queries,
)
from ssbroker.cli.terminal import FittedTable, cell
from ssbroker.ddl.sqlcmd import SECRET_NAME
from ssbroker.exceptions import InputError, MissingDependencyError, SsbrokerError

try:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.lexers import PygmentsLexer
    from prompt_toolkit.output import ColorDepth
    from prompt_toolkit.styles import Style
    from pygments.lexers.sql import TransactSqlLexer

    from ssbroker.cli.sql_completion import ShellCompleter
except ImportError:
    raise MissingDependencyError("the shell needs prompt_toolkit: pip install 'ssbroker[cli]'") from None

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance
    from ssbroker.ddl import ScriptNote, ScriptOptions

_ROWS_MAX: Final = 1000
_STYLE: Final = Style.from_dict(
    {
        "pygments.keyword": "bold",
        "pygments.literal.string": "ansigreen",
        "pygments.comment": "ansibrightblack",
    }
)
_DATA_STATEMENT: Final = re.compile(
    r"\s*(?:RECEIVE|SEND|MOVE\s+CONVERSATION|GET\s+CONVERSATION|(?:BEGIN|END)\s+(?:DIALOG|CONVERSATION))\b",
    re.IGNORECASE,
)
_NO_TRANSACTIONS: Final = (
    "the shell commits each input immediately, and cannot undo it later; to apply statements completely or not at all, "
    "enter them on one line"
)
_TERMINATED: Final = 128 + signal.SIGTERM


class _Command(NamedTuple):
    run: Callable[[Shell, str], None]
    argument: str
    meaning: str


class Shell:
    """Reads statements and commands from a terminal, and shows their results.

    Args:
        instance: The instance.
        options: How scripts are read.
        as_json: Whether the rows of queries are shown as JSON.
    """

    def __init__(self, instance: Instance, options: ScriptOptions, *, as_json: bool = False) -> None:
        self._instance = instance
        self._session = ScriptSession(instance_context(instance), options)
        self._as_json = as_json
        self._as_records = False
        self._console = Console()

    def run(self) -> None:
        """Reads and runs until the end of input or `quit`."""
        prompt: PromptSession[str] = PromptSession(
            history=_history(),
            completer=ShellCompleter(self._instance, {name: each.meaning for name, each in COMMANDS.items()}),
            complete_while_typing=False,
            lexer=PygmentsLexer(TransactSqlLexer),
            style=_STYLE,
            include_default_pygments_style=False,  # the default style's dark colours are hard to read on black
            # prompt_toolkit 3.0.36 does not read NO_COLOR.
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
            multiline=Condition(lambda: not is_complete(get_app().current_buffer.text)),
            prompt_continuation=lambda width, *_: "> ".rjust(width),
        )
        self._line(f"ssbroker {version('ssbroker')}, instance {self._instance.name}")
        self._line(r"Statements end with ; or GO. Tab completes, \? shows the commands, \q quits.")
        with _stopped_by_sigterm():
            while True:
                try:
                    text = prompt.prompt(self._prompt())
                except KeyboardInterrupt:
                    continue
                except EOFError:
                    return
                if text.strip().rstrip(" ;").casefold() in ("quit", "exit", r"\q"):
                    return
                self.execute(text)

    def execute(self, text: str) -> None:
        """Runs a command or statements; shows an error, and does not run the statements after it."""
        try:
            if is_command(text):
                self._run_command(text.strip().rstrip(" ;"))
                return
            for piece in pieces(text):
                if piece.is_query:
                    self._run_query(piece.text)
                else:
                    self._run_script(piece.text)
        except SsbrokerError as error:
            self._error(str(error), is_single=len(text.strip().splitlines()) == 1)
        except OSError as error:
            reason = str(error.strerror or error)
            self._error(reason if error.filename is None else f"{error.filename}: {reason}")
        except RecursionError:
            self._error("a value is nested too deeply; expected at most a few hundred levels")
        except KeyboardInterrupt:
            self._error("interrupted; completed batches are saved")

    def _prompt(self) -> str:
        database = self._session.database
        return terminal_safe(self._instance.name + ("" if database is None else f"/{database}")) + "> "

    def _run_query(self, text: str) -> None:
        for names, rows in run_queries(self._instance, text):
            self._show_rows(names, rows)

    def _show_rows(self, names: list[str], rows: Rows) -> None:
        if self._as_json:
            self._console.print(rows_as_json(names, rows), markup=False, highlight=False, soft_wrap=True)
            return
        if names and rows:
            self._print(result_table(names, rows[:_ROWS_MAX]))
        if len(rows) > _ROWS_MAX:
            self._line(f"({_ROWS_MAX:,} of {count_of(len(rows), 'row')}; LIMIT and OFFSET select other rows)", "dim")
        else:
            self._line(f"({count_of(len(rows), 'row')})", "dim")

    def _run_script(self, text: str) -> None:
        statement = open_transaction(text)
        if statement is not None:
            raise InputError(f"{statement}: {_NO_TRANSACTIONS}")
        notes = self._session.execute(text)
        if _DATA_STATEMENT.match(text):
            self._error(
                "messages are sent and received in Python (Transaction.send, Transaction.receive); "
                "here, SELECT shows the messages of a queue without removing them"
            )
            return
        self._notes(notes, is_single=len(text.strip().splitlines()) == 1)
        if not any(note.is_problem or note.kind == "skipped" for note in notes):
            self._line("done", "dim")

    def _notes(self, notes: list[ScriptNote], *, is_single: bool) -> None:
        for note in notes:
            text = str(note)
            self._line(text.removeprefix("line 1: ") if is_single else text, "yellow" if note.is_problem else "")

    def _run_command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        name = {"help": r"\?"}.get(name.casefold(), name)
        command = COMMANDS.get(name)
        if command is None:
            self._error(rf"{name}: no such command{did_you_mean(name, COMMANDS)}; \? shows the commands")
        elif argument.strip() and not command.argument:
            self._error(f"{name}: expected no argument, got {argument.strip()!r:.80}")
        else:
            command.run(self, argument.strip())

    def show_help(self, _: str) -> None:
        """Shows the commands."""
        rows = [(f"{name} {each.argument}".strip(), each.meaning) for name, each in COMMANDS.items()]
        width = max(len(name) for name, _ in rows)
        for name, meaning in rows:
            self._line(f"  {name:<{width}}  {meaning}")
        self._line(f"  {';':<{width}}  Ends a statement. A line with GO also ends blocks.")
        self._line("Queries (SELECT, FROM, WITH) are in DuckDB's SQL, all other statements in T-SQL.")

    def show_databases(self, _: str) -> None:
        """Shows the databases."""
        found = overview_of(self._instance)
        self._print(state_tables.database_rows(found), *state_tables.database_problems(found))

    def show_queues(self, _: str) -> None:
        """Shows the queues, and why they are disabled."""
        found = overview_of(self._instance)
        self._print(state_tables.queue_rows(found), *state_tables.queue_problems(found, self._instance.folder))

    def show_conversations(self, _: str) -> None:
        """Shows the conversations by state."""
        self._print(state_tables.conversation_rows(overview_of(self._instance)))

    def show_waiting(self, _: str) -> None:
        """Shows undelivered messages, and why they have not been delivered."""
        found = overview_of(self._instance)
        self._print(state_tables.waiting_rows(found), *state_tables.waiting_reasons(found, self._instance.folder))

    def show_services(self, _: str) -> None:
        """Shows the services with their queues and contracts."""
        rows = self._rows("sys.services")
        queues = {(row["database"], row["object_id"]): row for row in self._rows("sys.service_queues")}
        contracts = {(row["database"], row["service_contract_id"]): row for row in self._rows("sys.service_contracts")}
        accepted: dict[tuple[str, int], list[str]] = {}
        for usage in self._rows("sys.service_contract_usages"):
            contract = contracts[usage["database"], usage["service_contract_id"]]["name"]
            accepted.setdefault((usage["database"], usage["service_id"]), []).append(contract)
        shown = []
        for row in rows:
            queue = queues[row["database"], row["service_queue_id"]]
            shown.append(
                {
                    "database": row["database"],
                    "service": row["name"],
                    "queue": f"{queue['schema_name']}.{queue['name']}",
                    "contracts": ", ".join(sorted(accepted.get((row["database"], row["service_id"]), []))),
                }
            )
        self._print_table(shown, "There are no services.")

    def show_routes(self, _: str) -> None:
        """Shows the routing tables."""
        names = {
            "database": "database",
            "name": "route",
            "remote_service_name": "service",
            "broker_instance": "broker id",
            "address": "address",
            "mirror_address": "mirror",
            "lifetime": "expires",
        }
        table = self._instance.view("sys.routes")
        ids = guid_text(table["broker_instance"].combine_chunks()) if table.num_rows else table["broker_instance"]
        table = table.set_column(table.schema.get_field_index("broker_instance"), "broker_instance", ids)
        rows = [{names[name]: row[name] for name in names} for row in table.to_pylist()]
        # Columns that are empty for all routes are omitted.
        used = [name for name in names.values() if any(row[name] is not None for row in rows)]
        self._print_table([{name: row[name] for name in used} for row in rows], "There are no routes.")

    def describe(self, name: str) -> None:
        """Shows the views and queues, or the columns of one of them."""
        objects = readable_objects(self._instance)
        if not name:
            self._print(result_table(*objects_as_rows(objects)))
            return
        known = {each.casefold(): (schema, each) for schema, each in reversed(objects)}
        known |= {f"{schema}.{each}".casefold(): (schema, each) for schema, each in objects}
        plain = re.sub(r'[\[\]"]', "", name).casefold()
        if plain not in known:
            self._error(f"{name}: no such view or queue{did_you_mean(plain, known)}")
            return
        schema = read_object(self._instance, *known[plain]).schema
        columns = [{"column": field.name, "type": _type_name(field.type)} for field in schema]
        # Regardless of `\x`, because two columns are easy to read as a table.
        state_tables.print_parts(self._console, [result_table(["column", "type"], columns)])

    def toggle_records(self, _: str) -> None:
        """Switches between tables and records."""
        self._as_records = not self._as_records
        always = "Rows are shown as records."
        self._line(always if self._as_records else "Rows are shown as a table, or as records if a table does not fit.")

    def run_file(self, name: str) -> None:
        """Runs a script file."""
        if not name:
            self._error(r"\i: expected the name of a file")
            return
        path = Path(name)
        with suppress(RuntimeError):  # there is no such user
            path = path.expanduser()
        self._notes(self._session.execute_file(path), is_single=False)
        self._line(f"{name}: done", "dim")

    def quit(self, _: str) -> None:
        """Does nothing, because `run` returns at this command; the method exists so that the help lists the command."""

    def _rows(self, view: str) -> list[dict[str, Any]]:
        return self._instance.view(view).to_pylist()

    def _print_table(self, rows: list[dict[str, Any]], empty_text: str) -> None:
        if not rows:
            self._line(empty_text)
            return
        self._print(result_table(list(rows[0]), rows))

    def _print(self, *parts: Text | FittedTable) -> None:
        shown = (part.with_records() if self._as_records and isinstance(part, FittedTable) else part for part in parts)
        state_tables.print_parts(self._console, shown)

    def _line(self, text: str, style: str = "") -> None:
        self._print(cell(text, style))

    def _error(self, message: str, *, is_single: bool = False) -> None:
        for number, line in enumerate(
            message.removeprefix("line 1: ").splitlines() if is_single else message.splitlines()
        ):
            self._line(("error: " if number == 0 else "") + line, "red")


COMMANDS: Final = MappingProxyType(
    {
        r"\l": _Command(Shell.show_databases, "", "Databases."),
        r"\dq": _Command(Shell.show_queues, "", "Queues, with the number of messages, and why they are disabled."),
        r"\ds": _Command(Shell.show_services, "", "Services, with their queues and contracts."),
        r"\dr": _Command(Shell.show_routes, "", "Routes of all databases."),
        r"\dc": _Command(Shell.show_conversations, "", "Conversations by state."),
        r"\dw": _Command(Shell.show_waiting, "", "Messages that wait to be delivered, and why."),
        r"\d": _Command(
            Shell.describe, "[NAME]", "Views and queues that queries can read, or the columns of one of them."
        ),
        r"\x": _Command(Shell.toggle_records, "", "Show rows as records, or as tables that fit."),
        r"\i": _Command(Shell.run_file, "FILE", "Run a T-SQL script."),
        r"\?": _Command(Shell.show_help, "", "This help."),
        r"\q": _Command(Shell.quit, "", "Quit; also quit, exit and Ctrl-D."),
    }
)
"""The commands of the shell, by name."""


def _type_name(kind: pa.DataType) -> str:
    return "uuid" if kind == pa.binary(16) else str(kind)


class _PrivateHistory(FileHistory):
    """A history file without statements that may contain passwords."""

    def store_string(self, string: str) -> None:
        """Writes a statement to the file, unless it may contain a password."""
        if not SECRET_NAME.search(string):
            with suppress(OSError):
                super().store_string(string)


def _history() -> History:
    """Returns the history of the user; if the file cannot be written, the history lasts only as long as the shell."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(base) / "ssbroker" / "sql_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return InMemoryHistory()
    return _PrivateHistory(str(path))


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Ends the shell on SIGTERM, which other commands treat like Ctrl-C."""

    def stop(_number: int, _frame: Any) -> None:
        app = get_app()
        if app.is_running and app.loop is not None:  # first the terminal is restored
            app.loop.call_soon_threadsafe(lambda: app.exit(exception=SystemExit(_TERMINATED)))
        else:
            raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
