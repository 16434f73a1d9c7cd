"""The command `ssbroker`: its subcommands, and every error as one line."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Annotated, Any, Final, TextIO

import typer

from ssbroker.cli import certificates, compare, explain, lint, reassemble, route, serve, sql, status, trace
from ssbroker.cli.errors import one_line, standard_streams
from ssbroker.exceptions import SsbrokerError

_NAME: Final = "ssbroker"
_MANY: Final = "--conversations"
_INTERRUPTED: Final = 130
_STANDS: Final = {"sql": "the batches that were done stand", "certificates": "the certificates that were told of stand"}
"""What is left of a command that is interrupted, where it is something."""

app = typer.Typer(
    name=_NAME,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Service Broker: routing and reassembly over files, and a broker in a folder.",
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


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it with the value alone
    if asked:
        typer.echo(f"{_NAME} {version(_NAME)}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: What follows the command's name; None takes them from the process.

    Returns:
        The exit status: 0 done, 2 wrong use or bad input with one line on standard error, 130 interrupted.

    Examples:
        >>> main(["route", "--help"])  # doctest: +ELLIPSIS
        <BLANKLINE>
        ...
        0
    """
    with standard_streams():
        return _run(spread(sys.argv[1:] if arguments is None else arguments))


def _run(given: Sequence[str]) -> int:
    try:
        with _warnings_as_lines(quiet="--quiet" in given or "-q" in given), _terminated_as_interrupted():
            code = app(args=given, prog_name=_NAME, standalone_mode=False)
            sys.stdout.flush()
        if code == _INTERRUPTED:
            return _interrupted(given)
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", _NAME)
        return _fail(f"{error.format_message().removesuffix('.').replace('Value error, ', '')}; see '{command} --help'")
    except SsbrokerError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _interrupted(given)
    except RecursionError:
        return _fail("a value is nested too deeply; expected one within a few hundred others at most")
    except OSError as error:
        return _fail(f"{error.filename or _NAME}: {error.strerror or error}")
    except (
        UnicodeEncodeError
    ) as error:  # of what is not UTF-8 on the command line or on the disk, Python makes lone surrogates
        return _fail(
            f"{error.object[max(0, error.start - 40) : error.end + 40]!r} is not UTF-8; expected names that are"
        )


def spread(arguments: Sequence[str]) -> list[str]:
    """Lets one `--conversations` take many files, as a shell makes them of a pattern.

    Examples:
        >>> spread(["route", "--conversations", "a.csv", "b.csv", "-o", "c.csv"])
        ['route', '--conversations', 'a.csv', '--conversations', 'b.csv', '-o', 'c.csv']
    """
    spreaded: list[str] = []
    within = False
    for number, argument in enumerate(arguments):
        if argument.startswith("-") and argument != "-":
            within = argument == _MANY or argument.startswith(f"{_MANY}=")
        elif within and arguments[number - 1] != _MANY:
            spreaded.append(_MANY)
        spreaded.append(argument)
    return spreaded


def _interrupted(given: Sequence[str]) -> int:
    command = next((argument for argument in given if not argument.startswith("-")), "")
    return _fail(f"interrupted; {_STANDS.get(command, 'nothing was written')}", status=_INTERRUPTED)


def _fail(message: str, *, status: int = 2) -> int:
    with suppress(OSError):  # where not even this can be written, the status tells
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
def _terminated_as_interrupted() -> Iterator[None]:
    """A polite request to end removes what is half written, like Ctrl-C does."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: nobody can be told of signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
