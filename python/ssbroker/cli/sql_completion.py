"""Completes commands, keywords and names in the shell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from ssbroker.cli.sql_input import is_command
from ssbroker.cli.sql_query import read_object, readable_objects, referenced_objects
from ssbroker.exceptions import SsbrokerError

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance

_STATEMENTS: Final = [
    "ALTER",
    "BEGIN",
    "CREATE",
    "DECLARE",
    "DENY",
    "DESCRIBE",
    "DROP",
    "END",
    "EXEC",
    "EXPLAIN",
    "FROM",
    "GO",
    "GRANT",
    "IF",
    "REVOKE",
    "SELECT",
    "SET",
    "SHOW",
    "SUMMARIZE",
    "USE",
    "WITH",
]
_OBJECTS: Final = [
    "BROKER PRIORITY",
    "CERTIFICATE",
    "CONTRACT",
    "DATABASE",
    "ENDPOINT",
    "MASTER KEY",
    "MESSAGE TYPE",
    "QUEUE",
    "REMOTE SERVICE BINDING",
    "ROUTE",
    "SERVICE",
    "USER",
]
_CLAUSES: Final = [
    "ACTIVATION",
    "ADDRESS",
    "AND",
    "ANY",
    "AS",
    "ASC",
    "AUTHORIZATION",
    "BETWEEN",
    "BROKER_INSTANCE",
    "BY",
    "CASE",
    "COUNT",
    "DATABASE",
    "DESC",
    "DISTINCT",
    "ELSE",
    "ENABLE_BROKER",
    "EXISTS",
    "FROM",
    "GROUP BY",
    "HAVING",
    "IN",
    "INITIATOR",
    "IS",
    "JOIN",
    "LEFT JOIN",
    "LIFETIME",
    "LIKE",
    "LIMIT",
    "MIRROR_ADDRESS",
    "NEW_BROKER",
    "NOT",
    "NULL",
    "OFF",
    "ON",
    "ON QUEUE",
    "OR",
    "ORDER BY",
    "POISON_MESSAGE_HANDLING",
    "QUEUE",
    "RETENTION",
    "SENT BY",
    "SERVICE",
    "SERVICE_NAME",
    "STATUS",
    "TARGET",
    "THEN",
    "TO",
    "UNION ALL",
    "VALIDATION",
    "VALUES",
    "WHEN",
    "WHERE",
    "WITH",
]
_QUOTED_OR_COMMENT: Final = re.compile(r"--[^\n]*\n|/\*.*?\*/|'[^']*'|\[[^\]]*\]|\"[^\"]*\"", re.DOTALL)
_CURRENT: Final = re.compile(r"(['\[\"][^'\]\"]*|[\w.@#$/:]*)\Z")
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*")
_NAMED: Final = {
    "ROUTE": "routes",
    "SERVICE": "services",
    "QUEUE": "queues",
    "CONTRACT": "contracts",
    "TYPE": "message_types",
    "DATABASE": "databases",
    "USE": "databases",
    "SERVICE_NAME": "services",
}
"""The kind of names that follow each keyword."""


class Names(NamedTuple):
    """The names of the objects of an instance."""

    databases: list[str]
    queues: list[str]
    services: list[str]
    routes: list[str]
    contracts: list[str]
    message_types: list[str]

    @classmethod
    def of(cls, instance: Instance) -> Names:
        """Reads the current names."""

        def names(view: str) -> list[str]:
            return sorted({str(name) for name in instance.view(view)["name"].to_pylist()})

        return cls(
            databases=names("sys.databases"),
            queues=names("sys.service_queues"),
            services=names("sys.services"),
            routes=names("sys.routes"),
            contracts=names("sys.service_contracts"),
            message_types=names("sys.service_message_types"),
        )


class ShellCompleter(Completer):
    """Completes the text before the cursor.

    Args:
        instance: The instance.
        commands: The commands of the shell, each with its meaning.
    """

    def __init__(self, instance: Instance, commands: Mapping[str, str]) -> None:
        self._instance = instance
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yields the completions; none if the instance cannot be read."""
        del complete_event
        with suppress(SsbrokerError):
            yield from self._completions(document.text_before_cursor)

    def _completions(self, before: str) -> Iterator[Completion]:
        if is_command(before) and before.lstrip().startswith("\\"):
            yield from self._after_backslash(before.lstrip())
            return
        masked = _QUOTED_OR_COMMENT.sub(lambda found: "x" * len(found[0]), before)
        match = _CURRENT.search(masked)
        current = before[match.start() :] if match else ""
        words = re.findall(r"\w+|[^\w\s]", masked[: len(masked) - len(current)].upper())
        names = Names.of(self._instance)
        if current[:1] in ("'", "[", '"'):
            yield from _quoted(current, names, words)
        elif _is_table(words, before):
            yield from _matching(current, self._tables())
        elif words and words[-1] in _NAMED and words[-2:-1] not in (["CREATE"], ["MESSAGE"]):
            yield from _name_completions(current, getattr(names, _NAMED[words[-1]]))
        elif words[-2:] in (["ALTER", "MESSAGE"], ["DROP", "MESSAGE"]):
            yield from _matching(current, ["TYPE"])
        elif words[-2:] == ["MESSAGE", "TYPE"] and words[-3:-2] != ["CREATE"]:
            yield from _name_completions(current, names.message_types)
        elif words[-1:] in (["CREATE"], ["ALTER"], ["DROP"]):
            yield from _matching(current, _OBJECTS)
        elif not words or words[-1] in (";", "GO"):
            yield from _matching(current, _STATEMENTS)
        elif current:
            yield from _matching(current, [*self._columns(before), *_CLAUSES])

    def _after_backslash(self, before: str) -> Iterator[Completion]:
        command, space, given = before.partition(" ")
        if space:
            yield from _matching(given, self._tables() if command == r"\d" else [])
            return
        for name, meaning in self._commands.items():
            if name.startswith(command):
                yield Completion(name, -len(command), display_meta=meaning)

    def _tables(self) -> list[str]:
        objects = readable_objects(self._instance)
        return [f"{schema}.{name}" for schema, name in objects] + [name for _, name in objects]

    def _columns(self, text: str) -> list[str]:
        """Returns the columns of the views and queues that a query names."""
        found: dict[str, Any] = {}
        for _, (schema, name) in referenced_objects(readable_objects(self._instance), text):
            found |= dict.fromkeys(read_object(self._instance, schema, name).column_names)
        return [*found]


def _is_table(words: list[str], text: str) -> bool:
    """Returns whether the name of a view or queue can follow the typed words."""
    is_query = re.search(r"\b(?:SELECT|FROM|DESCRIBE|SHOW|SUMMARIZE)\b", text, re.IGNORECASE) is not None
    return is_query and words[-1:] in (["FROM"], ["JOIN"], ["DESCRIBE"], ["SHOW"], ["SUMMARIZE"])


def _quoted(current: str, names: Names, words: list[str]) -> Iterator[Completion]:
    """Yields the names that complete a string, or a name in brackets or quotation marks."""
    mark, given = current[0], current[1:]
    end = {"[": "]"}.get(mark, mark)
    keyword = words[-2] if words[-1:] == ["="] and len(words) > 1 else words[-1] if words else ""
    kind = _NAMED.get(keyword)
    known = getattr(names, kind) if kind else sorted({name for group in names for name in group})
    for name in known:
        if name.casefold().startswith(given.casefold()):
            yield Completion(f"{mark}{name.replace(end, end * 2)}{end}", -len(current))


def _matching(current: str, known: Iterable[str]) -> Iterator[Completion]:
    """Yields the names that start with the typed text, ignoring case; keywords follow the case of the typed text."""
    wanted = current.casefold()
    for name in dict.fromkeys(known):
        if name.casefold().startswith(wanted) and name != current:
            is_lower = current.islower() and name.isupper()
            yield Completion(name.lower() if is_lower else name, -len(current))


def _name_completions(current: str, names: Iterable[str]) -> Iterator[Completion]:
    """Yields the names of objects that start with the typed text, in brackets where T-SQL requires them."""
    for name in names:
        if name.casefold().startswith(current.casefold()):
            yield Completion(_bracketed(name), -len(current))


def _bracketed(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"[{name.replace(']', ']]')}]"
