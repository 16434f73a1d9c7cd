"""The code blocks of a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        language: The text after the opening fence; empty for a figure.
        text: The lines between the fences, each with its line break.
        line: The line of the opening fence.
    """

    language: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Command:
    """A line that begins with `$` in a console block, and the output that follows it."""

    command: str
    output: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    language: str | None = None
    body: list[str] = []
    opened = 0
    for number, line in enumerate(page.splitlines(), start=1):
        fence = line.strip().startswith("```")
        if fence and language is None:
            language, body, opened = line.strip().removeprefix("```").strip(), [], number
        elif fence and language is not None:
            yield Block(language, "".join(f"{text}\n" for text in body), opened)
            language = None
        elif language is not None:
            body.append(line)
    assert language is None, f"the block of line {opened} has no end"


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block; a line that ends with a backslash continues on the next one."""
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        assert lines[at].startswith("$ "), f"line {block.line + 1 + at}: output without a command"
        first = at
        command = lines[at].removeprefix("$ ")
        while command.endswith("\\"):
            at += 1
            command = f"{command}\n{lines[at]}"
        at += 1
        start = at
        while at < len(lines) and not lines[at].startswith("$ "):
            at += 1
        yield Command(command, "".join(f"{text}\n" for text in lines[start:at]), block.line + 1 + first)
