"""The command `ssbroker`: its subcommands, its standard streams, and the reporting of errors as one line."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer
from typer.core import TyperGroup

from ssbroker._text import one_line
from ssbroker.cli import help  # noqa: A004 - the module is named after what it writes
from ssbroker.exceptions import OutputError, SsbrokerError

STREAM_NAMES: Final = {1: "standard output", 2: "standard error"}


@contextmanager
def standard_streams() -> Iterator[None]:
    """Replaces the standard streams, so that a command runs to its end even if its output is not read.

    A closed pipe (`ssbroker sql shop/ *.sql | head -1`) or a stream that was closed from the start neither stops the command nor changes
    its exit status. Other write errors raise `OutputError`. Characters that the encoding of the stream lacks are written as backslash
    escapes, which are valid in JSON too.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _resilient(sys.stdout), _resilient(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, OutputError):
                # Not at the end of the process: Spark keeps the streams, and ends the process without flushing them.
                stream.flush()
        sys.stdout, sys.stderr = before


class _ResilientFile(io.FileIO):
    """A stream that discards output after its pipe is closed, and after the first error."""

    _is_failed = False
    is_closed = False
    """Whether the reader has closed the output."""

    def write(self, data: Any, /) -> int:
        if self._is_failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            self.is_closed = True
            return memoryview(data).nbytes
        except OSError as error:
            self._is_failed = True
            name = STREAM_NAMES.get(self.fileno(), "the output")
            raise OutputError(f"{name}: cannot be written: {error.strerror}") from error


def _resilient(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    is_replaced = stream is not sys.__stdout__ and stream is not sys.__stderr__
    if is_replaced or stream.isatty():
        return stream
    stream.flush()
    is_unbuffered = getattr(stream, "write_through", False)  # PYTHONUNBUFFERED
    return io.TextIOWrapper(
        io.BufferedWriter(_ResilientFile(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=is_unbuffered or getattr(stream, "line_buffering", False),
    )


def is_output_closed() -> bool:
    """Returns whether the reader has closed standard output, so that a command that runs forever can stop."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _ResilientFile) and raw.is_closed


_NAME: Final = "ssbroker"
_LOGGER: Final = logging.getLogger(_NAME)
_MULTIPLE_FILES_OPTION: Final = "--conversations"
_OPTIONAL_VALUE_OPTION: Final = "--http"
_HTTP_ADDRESS: Final = "127.0.0.1:9422"
_INTERRUPTED: Final = 130
_INTERRUPTED_NOTES: Final = {
    "sql": "completed batches are saved",
    "certificates": "the certificates listed above were created",
}
"""What an interrupted command leaves behind, if not the previous state."""

_UNTIL_INTERRUPTED: Final = "watch"
"""The command that runs until it is interrupted, and writes nothing; the signal may arrive before the command handles it."""

_COMMANDS: Final = {
    "route": "Route conversations: write each one with its routing decision, and print a summary.",
    "reassemble": "Reassemble messages: verify their signatures, and write each complete message once, in order.",
    "explain": "Explain the routing of one conversation.",
    "lint": "Find problems in the routing tables, databases and services of one or more instances, and in the scripts that describe them.",
    "trace": "Follow a conversation from instance to instance, and its acknowledgement back.",
    "stuck": "Explain why messages wait in a transmission queue.",
    "compare": "Show which conversations change between two catalogs, and why.",
    "certificates": "Create a certificate authority, and certificates signed by it for instances.",
    "serve": "Serve an instance: exchange messages with other instances until SIGTERM or Ctrl-C.",
    "sql": "Run T-SQL scripts, a query or an interactive shell on an instance.",
    "status": "Show the state of an instance.",
    "watch": "Show the state of an instance as it changes, until Ctrl-C.",
    "requeue": "Put failed messages back into the queue from which they were moved.",
    "doctor": "Check the installation, and the files of an instance.",
}
"""The commands, each with the first line of its help. The module of a command has the same name, and is imported when needed."""


class _Group(TyperGroup):
    """The command `ssbroker`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._loaded: dict[str, Any] = {}
        self.commands = dict.fromkeys(_COMMANDS)  # type: ignore[assignment]  # typer suggests these names

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Imports a command; returns None if there is no command with this name."""
        del ctx
        if cmd_name in _COMMANDS and cmd_name not in self._loaded:
            module = import_module(f"ssbroker.cli.{cmd_name}")
            single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_CONTEXT)
            single.command(cmd_name, cls=help.Command, epilog=module.EXAMPLES)(getattr(module, cmd_name))
            self._loaded[cmd_name] = typer.main.get_command(single)
        return self._loaded.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help without importing the commands."""
        width = help.help_width()
        options = [(help.label(option), help.meaning(option)) for option in self.get_params(ctx)]
        lines = [
            f"Usage: {ctx.command_path} COMMAND [OPTIONS]",
            "",
            *help.wrapped(self.help or "", width=width),
            "",
            "Commands:",
            *help.definitions(_COMMANDS.items(), width=width),
            "",
            "Options:",
            *help.definitions(options, width=width),
            "",
            "Examples:",
            "",
            "  ssbroker explain routes.sql --to-service //shop/Stock",
            "  ssbroker route --help",
        ]
        formatter.write("\n".join(lines) + "\n")


_CONTEXT: Final = {"help_option_names": ["--help", "-h"]}
app = typer.Typer(
    name=_NAME,
    cls=_Group,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
    help="Route and reassemble messages of SQL Server Service Broker, check routing tables, and run a broker.",
)


def _print_version(is_requested: bool) -> None:  # noqa: FBT001 - typer passes the value by position
    if is_requested:
        typer.echo(f"{_NAME} {version(_NAME)}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# The base class of errors that typer raises about arguments; public since typer 0.28.
_USAGE_ERROR: Final[type[Any]] = getattr(typer, "TyperException", typer.BadParameter.mro()[2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The command-line arguments; None means the arguments of the process.

    Returns:
        The exit status: 0 after success, 2 after an error, 130 after an interruption, and 1 as documented by the
        subcommand. An error is one line on standard error.

    Examples:
        >>> main(["route", "--help"])  # doctest: +ELLIPSIS
        <BLANKLINE>
        ...
        0
    """
    with standard_streams():
        return _run(repeat_option(sys.argv[1:] if arguments is None else arguments))


def _usage_problem(error: Any, arguments: Sequence[str]) -> str:
    """Returns what is wrong with the arguments; typer does not name a value that pydantic has refused."""
    problem: str = error.format_message().removesuffix(".").replace("Value error, ", "")
    if hasattr(error.__cause__, "errors") and "Input should" in problem:
        value = error.__cause__.errors()[0]["input"]
        problem = f"{problem.replace('Input should be a valid', 'expected a valid').replace('Input should be', 'expected a value')}, got {value!r:.80}"
    if problem.startswith("Missing argument") and _MULTIPLE_FILES_OPTION in arguments:
        problem += f"; specify it before {_MULTIPLE_FILES_OPTION}, which takes all the values that follow"
    if problem.startswith("Missing argument") and _OPTIONAL_VALUE_OPTION in arguments:
        problem += f"; specify it before {_OPTIONAL_VALUE_OPTION}, which takes the value that follows"
    return problem


def _run(arguments: Sequence[str]) -> int:
    try:
        with _warnings_as_lines(quiet="--quiet" in arguments or "-q" in arguments), _sigterm_as_interrupt():
            code = app(args=add_http_address(arguments), prog_name=_NAME, standalone_mode=False)
            sys.stdout.flush()
        if code == _INTERRUPTED:
            return _interrupted(arguments)
        return code if isinstance(code, int) else 0
    except _USAGE_ERROR as error:
        command = getattr(getattr(error, "ctx", None), "command_path", _NAME)
        return _fail(f"{_usage_problem(error, arguments)}; see '{command} --help'")
    except SsbrokerError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _interrupted(arguments)
    except RecursionError:
        return _fail("a value is nested too deeply; expected at most a few hundred levels")
    except OSError as error:
        return _fail(f"{error.filename or _NAME}: {error.strerror or error}")
    except UnicodeEncodeError as error:
        # Python decodes arguments and file names that are not UTF-8 to lone surrogates.
        name = error.object[max(0, error.start - 40) : error.end + 40]
        return _fail(f"{name!r} is not valid UTF-8; expected names in UTF-8")


def repeat_option(arguments: Sequence[str]) -> list[str]:
    """Repeats `--conversations` before each file, so that a shell pattern can follow the option.

    Examples:
        >>> repeat_option(["route", "--conversations", "a.csv", "b.csv", "-o", "c.csv"])
        ['route', '--conversations', 'a.csv', '--conversations', 'b.csv', '-o', 'c.csv']
    """
    repeated: list[str] = []
    is_after_option = False
    for number, argument in enumerate(arguments):
        if argument.startswith("-") and argument != "-":
            is_after_option = argument == _MULTIPLE_FILES_OPTION or argument.startswith(f"{_MULTIPLE_FILES_OPTION}=")
        elif is_after_option and arguments[number - 1] != _MULTIPLE_FILES_OPTION:
            repeated.append(_MULTIPLE_FILES_OPTION)
        repeated.append(argument)
    return repeated


def add_http_address(arguments: Sequence[str]) -> list[str]:
    """Adds the default address after `--http` without a value, which typer does not support.

    Examples:
        >>> add_http_address(["serve", "shop/", "--http", "--log", "json"])
        ['serve', 'shop/', '--http', '127.0.0.1:9422', '--log', 'json']
    """
    completed: list[str] = []
    for argument, following in zip(arguments, [*arguments, "--"][1:], strict=True):
        completed.append(argument)
        if argument == _OPTIONAL_VALUE_OPTION and following.startswith("-"):
            completed.append(_HTTP_ADDRESS)
    return completed


def _interrupted(arguments: Sequence[str]) -> int:
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    if command == _UNTIL_INTERRUPTED:
        return 0
    return _fail(f"interrupted; {_INTERRUPTED_NOTES.get(command, 'nothing was written')}", status=_INTERRUPTED)


def _fail(message: str, *, status: int = 2) -> int:
    with suppress(OSError):  # if this cannot be written either, only the exit status reports the error
        sys.stderr.write(f"{_NAME}: {one_line(message)}\n")
    return status


@contextmanager
def _warnings_as_lines(*, quiet: bool) -> Iterator[None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del category, filename, lineno, file, line
        sys.stderr.write(f"{_NAME}: warning: {one_line(str(message))}\n")

    records = _RecordsAsLines(logging.ERROR if quiet else logging.WARNING)
    _LOGGER.addHandler(records)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if quiet else "always", UserWarning)
            warnings.showwarning = show
            yield
    finally:
        _LOGGER.removeHandler(records)


class _RecordsAsLines(logging.Handler):
    """Writes records of the library as lines, each text once, unless the command writes a log itself, as `serve` does."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._written: Final[set[str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {one_line(record.getMessage())}"
        if _LOGGER.handlers == [self] and text not in self._written:
            self._written.add(text)
            with suppress(OSError, OutputError):  # the thread that logs goes on
                sys.stderr.write(f"{_NAME}: {text}\n")


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treats SIGTERM like Ctrl-C, so that incomplete outputs are removed."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, which is the only one that handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
