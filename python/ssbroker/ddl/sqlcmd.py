"""Executes sqlcmd commands in scripts: variables, included files, and connections to other servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ssbroker.ddl.annotations import WITHOUT_SQLCMD
from ssbroker.ddl.lexer import ScriptSource, SourcePart, Token, next_token
from ssbroker.exceptions import DdlError, OptionError

VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
REFERENCE: Final = re.compile(r"\$\(([A-Za-z_][\w-]*)\)", re.ASCII)
_MAY_USE_SQLCMD: Final = re.compile(r"\$\(|^[^\S\r\n]*(?::|!!)", re.MULTILINE)
_COMMAND: Final = re.compile(r"(?::(?P<name>[A-Za-z]+)|:?!!)(?P<arguments>[^\r\n]*)", re.ASCII)
_ARGUMENT: Final = re.compile(r"\s*(?:\"((?:[^\"]|\"\")*)\"|(\S+))")
_INCLUDE_DEPTH_MAX: Final = 32
_INCLUDES_MAX: Final = 10_000
_VALUE_MAX: Final = 100_000
_EXPANSION_MAX: Final = 64 << 20
"""Maximum number of characters that variables, and files that are included more than once, may add to a script."""
SECRET_NAME: Final = re.compile(r"pass|pwd|secret", re.IGNORECASE)
"""Matches names of variables whose values are secret, and a word in statements that may contain a secret."""
_OTHER_COMMANDS: Final = frozenset(
    {
        "ed",
        "error",
        "exit",
        "help",
        "list",
        "listvar",
        "on",
        "out",
        "perftrace",
        "quit",
        "reset",
        "serverlist",
        "xml",
    }
)

ReadFile = Callable[[Path], str]
"""A function that returns the text of a file."""


def check_variables(variables: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the given variables by name in lower case; raises if a name or a value is not valid."""
    given: object = variables
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"variables: expected a mapping of names to values, got {type(given).__name__}")
    for name, value in given.items():
        if not isinstance(name, str) or VARIABLE_NAME.fullmatch(name) is None:
            raise OptionError(f"variables: {name!r:.80} is not a valid variable name")
        if not isinstance(value, str):
            raise OptionError(f"variables: {name}: expected text, got {type(value).__name__}")
    return {name.lower(): value for name, value in given.items()}


def substitute(
    text: str,
    file: str | None,
    *,
    variables: Mapping[str, str],
    read_file: ReadFile,
    included: set[Path] | None = None,
    report: Callable[[DdlError], None] | None = None,
) -> ScriptSource:
    """Returns a script with its variables replaced and its files included.

    Args:
        text: The text of the script.
        file: The file of the script; paths of `:r` are relative to the folder of the file that includes them.
        variables: Values of variables by name in lower case; `:setvar` replaces them, as in sqlcmd.
        read_file: Reads an included file.
        included: Receives the files that were included.
        report: Receives errors; without it, the first error is raised.

    Raises:
        DdlError: A variable is not defined, a file cannot be read, or a command is incomplete.
    """
    text = text.removeprefix("\ufeff")
    if _MAY_USE_SQLCMD.search(text) is None or text.startswith(WITHOUT_SQLCMD.rstrip()):
        return ScriptSource(text, file)
    substitution = _Substitution(dict(variables), read_file, set() if included is None else included, report)
    substitution.add(text, file, depth=0)
    return ScriptSource("".join(substitution.texts), file, parts=substitution.parts)


@dataclass
class _Substitution:
    variables: dict[str, str]
    read_file: ReadFile
    included: set[Path]
    report: Callable[[DdlError], None] | None
    texts: list[str] = field(default_factory=list)
    parts: list[SourcePart] = field(default_factory=list)
    length: int = 0
    files_left: int = _INCLUDES_MAX
    expansion_left: int = _EXPANSION_MAX

    def add(self, text: str, file: str | None, *, depth: int) -> None:
        """Adds the text of a file, with its variables replaced and its commands executed."""
        source = ScriptSource(text, file)
        copied = offset = 0
        while offset < len(text):
            command = _COMMAND.match(text, offset) if text[offset] in ":!" else None
            if command is not None and not text[source.line_start(offset) : offset].strip():
                self._copy(source, copied, offset)
                offset = copied = command.end()
                self._run(source, command, depth)
                continue
            end = self._token_end(source, offset)
            if text[offset] != "/" and not text.startswith("--", offset):
                for reference in REFERENCE.finditer(text, offset, end):
                    self._copy(source, copied, reference.start())
                    copied = reference.end()
                    self._insert(source, reference)
            offset = end
        self._copy(source, copied, len(text))

    def _token_end(self, source: ScriptSource, offset: int) -> int:
        if source.text.startswith("$(", offset):
            reference = REFERENCE.match(source.text, offset)
            return offset + 1 if reference is None else reference.end()
        try:
            token, end = next_token(source, offset)
        except DdlError:  # the error is reported with its batch, after earlier batches have run
            return len(source.text)
        # If a variable touches a word, as in prefix$(Name), the word ends where the variable starts.
        is_word = isinstance(token, Token) and token.kind == "word"
        start = source.text.find("$(", offset + 1, end + 1) if is_word else -1
        return start if start >= 0 and REFERENCE.match(source.text, start) is not None else end

    def _copy(self, source: ScriptSource, start: int, end: int, *, is_secret: bool = False) -> None:
        if start < end:
            self._append(source.text[start:end], source, start, is_secret=is_secret)

    def _append(self, text: str, source: ScriptSource, offset: int, *, is_secret: bool = False) -> None:
        file, line = source.position(offset)
        self.parts.append(SourcePart(self.length, file, line, is_secret))
        self.texts.append(text)
        self.length += len(text)

    def _insert(self, source: ScriptSource, reference: re.Match[str]) -> None:
        name = reference[1]
        value = self.variables.get(name.lower())
        if value is None:
            self._fail(source, reference.start(), _undefined(name))
            value = reference[0]
        if self._take_expansion(source, reference.start(), len(value)):
            self._append(value, source, reference.start(), is_secret=SECRET_NAME.search(name) is not None)

    def _take_expansion(self, source: ScriptSource, offset: int, length: int) -> bool:
        """Counts characters to add, and returns whether they may be added; reports the first that exceed the limit."""
        had_room = self.expansion_left >= 0
        self.expansion_left -= length
        if self.expansion_left < 0 and had_room:
            self._fail(source, offset, f"variables and repeated :r add more than {_EXPANSION_MAX:,} characters")
        return self.expansion_left >= 0

    def _fail(self, source: ScriptSource, offset: int, reason: str) -> None:
        error = source.error(offset, reason)
        if self.report is None:
            raise error
        self.report(error)

    def _run(self, source: ScriptSource, command: re.Match[str], depth: int) -> None:
        """Executes `:setvar`, `:r` or `:connect`; skips other sqlcmd commands, such as `:on error exit`, and reports unknown commands."""
        if command["name"] is None:  # `!!`, an operating system command
            return
        name = command["name"].lower()
        arguments = [(quoted or word).replace('""', '"') for quoted, word in _ARGUMENT.findall(command["arguments"])]
        if name == "setvar" and arguments:
            self._set(source, command.start(), arguments)
        elif name == "r" and arguments:
            self._include(source, command.start(), self._resolve(source, command.start(), arguments[0]), depth)
        elif name == "connect" and arguments:
            server = self._resolve(source, command.start(), arguments[0]).replace("\0", "")
            self._append(f"\0:connect {server}\0", source, command.start())
        elif name in ("setvar", "r", "connect"):
            self._fail(source, command.start(), f":{name} requires an argument")
        elif name not in _OTHER_COMMANDS:
            self._fail(source, command.start(), f":{name} is not a command of sqlcmd")

    def _set(self, source: ScriptSource, offset: int, arguments: list[str]) -> None:
        name, *values = arguments
        if VARIABLE_NAME.fullmatch(name) is None:
            self._fail(source, offset, f":setvar requires a valid variable name, got {name!r:.80}")
        elif values:
            value = self._resolve(source, offset, values[0])
            if len(value) > _VALUE_MAX:
                self._fail(source, offset, f"the value of {name} has more than {_VALUE_MAX:,} characters")
            else:
                self.variables[name.lower()] = value
        else:
            self.variables.pop(name.lower(), None)

    def _resolve(self, source: ScriptSource, offset: int, text: str) -> str:
        """Replaces the variables in the argument of a command."""

        def value(reference: re.Match[str]) -> str:
            found = self.variables.get(reference[1].lower())
            if found is None:
                self._fail(source, offset, _undefined(reference[1]))
                return reference[0]
            return found

        return REFERENCE.sub(value, text)

    def _include(self, source: ScriptSource, offset: int, name: str, depth: int) -> None:
        if source.file is None:
            self._fail(
                source,
                offset,
                f":r {name} is relative to the script, whose file is not known; read the script from a file",
            )
            return
        if depth == _INCLUDE_DEPTH_MAX:
            self._fail(source, offset, f":r {name} is nested more than {_INCLUDE_DEPTH_MAX} levels deep")
            return
        self.files_left -= 1
        if self.files_left < 0:
            self._fail(
                source,
                offset,
                f":r {name} is not included, because scripts may include at most {_INCLUDES_MAX:,} files",
            )
            return
        path = Path(source.file).parent / name.replace("\\", "/")
        try:
            path = _existing(path)
            text = self.read_file(path)
        except DdlError as error:
            if self.report is None:
                raise
            self.report(error)
            return
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self._fail(source, offset, f":r {path} cannot be read: {reason}")
            return
        resolved = path.resolve()
        if resolved in self.included and not self._take_expansion(source, offset, len(text)):
            return
        self.included.add(resolved)
        self.add(text.removeprefix("\ufeff"), str(path), depth=depth + 1)


def _existing(path: Path) -> Path:
    """Returns the path itself if it exists, or else the only existing path that differs from it only in case, as on Windows."""
    if path.exists() or path == path.parent:
        return path
    folder = _existing(path.parent)
    similar = (
        [one for one in folder.iterdir() if one.name.casefold() == path.name.casefold()] if folder.is_dir() else []
    )
    return similar[0] if len(similar) == 1 else path


def _undefined(name: str) -> str:
    """Returns the message that a variable is not defined, and how to define it."""
    return (
        f"the sqlcmd variable $({name}) is not defined; "
        f'define it with -v {name}="..." or :setvar {name} "..." (Python: variables={{"{name}": "..."}})'
    )
