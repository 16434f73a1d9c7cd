"""The help of commands: plain text that fits the terminal. Prose is wrapped; option names and examples are not."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

from typer.core import TyperCommand

_WIDTH_MAX: Final = 100
_LABEL_WIDTH: Final = 30
"""Width of the column with the names of options."""


class Command(TyperCommand):
    """A command whose help is plain text."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help."""
        formatter.write("\n".join(command_help(self, ctx)) + "\n")


def command_help(command: TyperCommand, context: Any) -> Iterator[str]:
    """Yields the lines of the help of a command."""
    width = help_width()
    yield from wrapped(f"Usage: {context.command_path} {usage(command)}", width=width, indent=" " * 7)
    for paragraph in (command.help or "").split("\n\n"):
        yield ""
        yield from wrapped(paragraph, width=width)
    for title, parameters in _sections(command, context):
        yield ""
        yield f"{title}:"
        yield from definitions(((label(each), meaning(each)) for each in parameters), width=width)
    yield ""
    yield from _epilog(command.epilog or "", width=width)


def usage(command: TyperCommand) -> str:
    """Returns the arguments and required options of a command."""
    words = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = (parameter.metavar or parameter.name).removesuffix("...")
            name += "..." if _is_repeated(parameter) else ""
            words.append(name if parameter.required else f"[{name}]")
        elif parameter.required:
            words.append(label(parameter).rpartition(", ")[2])
    return " ".join([*words, "[OPTIONS]"])


def label(parameter: Any) -> str:
    """Returns the names of an option and its value, or the name of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name)
    names = sorted(parameter.opts, key=len)
    text = ", ".join([*names, *parameter.secondary_opts])
    return text if parameter.metavar is None else f"{text} {parameter.metavar}"


def meaning(parameter: Any) -> str:
    """Returns the help of an option with its default."""
    text = str(parameter.help or "")
    if parameter.param_type_name == "option" and parameter.required:
        return f"{text} Required."
    default = parameter.default
    if "Default:" in text or isinstance(default, bool) or not isinstance(default, str | int | float):
        return text
    return f"{text} Default: {f'{default:g}' if isinstance(default, float) else default}."


def definitions(rows: Iterable[tuple[str, str]], *, width: int) -> Iterator[str]:
    r"""Yields two columns; a long name gets a separate line.

    Examples:
        >>> print("\n".join(definitions([("--json", "Print JSON."), ("-o, --output-of-everything FILE", "A file.")], width=60)))
          --json                        Print JSON.
          -o, --output-of-everything FILE
                                        A file.
    """
    indent = " " * (_LABEL_WIDTH + 2)
    for name, text in rows:
        fits = len(name) < _LABEL_WIDTH - 1
        if not fits or not text:
            yield f"  {name}"
        yield from wrapped(text, width=width, indent=indent, first=f"  {name:<{_LABEL_WIDTH}}" if fits else indent)


def wrapped(text: str, *, width: int, indent: str = "", first: str = "") -> list[str]:
    """Returns a paragraph in lines that break at words only."""
    return textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def help_width() -> int:
    """Returns the width of the terminal, at most 100 columns."""
    return min(shutil.get_terminal_size().columns, _WIDTH_MAX)


def _is_repeated(parameter: Any) -> bool:
    return parameter.nargs != 1 or bool(getattr(parameter, "multiple", False))


def _sections(command: TyperCommand, context: Any) -> Iterator[tuple[str, list[Any]]]:
    sections: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False):
            continue
        title = "Arguments" if parameter.param_type_name == "argument" else "Options"
        sections.setdefault(getattr(parameter, "rich_help_panel", None) or title, []).append(parameter)
    yield from ((title, parameters) for title, parameters in sections.items() if parameters)


def _epilog(text: str, *, width: int) -> Iterator[str]:
    """Wraps prose and keeps the indented examples as they are."""
    for line in text.splitlines():
        yield from [line] if line.startswith(" ") or not line else wrapped(line, width=width)
