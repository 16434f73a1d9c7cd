"""The command `ssbroker`: its subcommands, its standard streams, and the reporting of errors as one line."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from ssbroker.cli import certificates, compare, explain, lint, reassemble, route, serve, sql, status, trace
from ssbroker.cli.errors import one_line
from ssbroker.exceptions import OutputError, SsbrokerError

_STREAM_NAMES: Final = {1: "standard output", 2: "standard error"}


@contextmanager
def standard_streams() -> Iterator[None]:
    """Replaces the standard streams, so that a command runs to its end even if nobody reads its output.

    A closed pipe (`ssbroker sql shop/ *.sql | head -1`) or a stream that was closed from the start neither stops the command nor changes
    its exit status. Other write errors raise `OutputError`. Characters that the encoding of the stream lacks are written as backslash
    escapes, which are valid in JSON too.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _resilient(sys.stdout), _resilient(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _ResilientFile(io.FileIO):
    """A stream that discards output after its pipe is closed, and after the first error."""

    _is_failed = False

    def write(self, data: Any, /) -> int:
        if self._is_failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes
        except OSError as error:
            self._is_failed = True
            name = _STREAM_NAMES.get(self.fileno(), "the output")
            raise OutputError(f"{name}: cannot be written: {error.strerror}") from error


def _resilient(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    is_replaced = stream is not sys.__stdout__ and stream is not sys.__stderr__
    if is_replaced or stream.isatty():
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_ResilientFile(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )


_NAME: Final = "ssbroker"
_MULTIPLE_FILES_OPTION: Final = "--conversations"
_INTERRUPTED: Final = 130
_INTERRUPTED_NOTES: Final = {
    "sql": "completed batches are saved",
    "certificates": "the certificates listed above were created",
}
"""The state that an interrupted command leaves, if it is not the state before."""

app = typer.Typer(
    name=_NAME,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Route and reassemble messages of SQL Server Service Broker, check routing tables, and run a broker.",
)
app.command("route", epilog=route.EXAMPLES)(route.route)
app.command("reassemble", epilog=reassemble.EXAMPLES)(reassemble.reassemble)
app.command("explain", epilog=explain.EXAMPLES)(explain.explain)
app.command("lint", epilog=lint.EXAMPLES)(lint.lint)
app.command("trace", epilog=trace.EXAMPLES)(trace.trace)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
app.command("certificates", epilog=certificates.EXAMPLES)(certificates.certificates)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.command("sql", epilog=sql.EXAMPLES)(sql.sql)
app.command("status", epilog=status.EXAMPLES)(status.status)


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


# The base of the errors that typer raises about arguments; it has a public name since typer 0.28.
_USAGE_ERROR: Final[type[Any]] = getattr(typer, "TyperException", typer.BadParameter.mro()[2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The command-line arguments; None takes those of the process.

    Returns:
        The exit status: 0 for success, 2 for wrong use or bad input, 130 if interrupted, 1 as documented by the subcommand. Errors are one line
        on standard error.

    Examples:
        >>> main(["route", "--help"])  # doctest: +ELLIPSIS
        <BLANKLINE>
        ...
        0
    """
    with standard_streams():
        return _run(repeat_option(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: Sequence[str]) -> int:
    try:
        with _warnings_as_lines(quiet="--quiet" in arguments or "-q" in arguments), _sigterm_as_interrupt():
            code = app(args=arguments, prog_name=_NAME, standalone_mode=False)
            sys.stdout.flush()
        if code == _INTERRUPTED:
            return _interrupted(arguments)
        return code if isinstance(code, int) else 0
    except _USAGE_ERROR as error:
        command = getattr(getattr(error, "ctx", None), "command_path", _NAME)
        return _fail(f"{error.format_message().removesuffix('.').replace('Value error, ', '')}; see '{command} --help'")
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
    """Repeats `--conversations` before each of its files, so that a shell pattern can follow it.

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


def _interrupted(arguments: Sequence[str]) -> int:
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    return _fail(f"interrupted; {_INTERRUPTED_NOTES.get(command, 'nothing was written')}", status=_INTERRUPTED)


def _fail(message: str, *, status: int = 2) -> int:
    with suppress(OSError):  # if not even this can be written, only the exit status reports the error
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

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "always", UserWarning)
        warnings.showwarning = show
        yield


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treats SIGTERM like Ctrl-C, so that incomplete outputs are removed."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, which alone handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
