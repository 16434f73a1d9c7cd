"""The text of a script: its encoding, its lines, and the error that names them."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from typing import Final

from ssbroker.exceptions import DdlError

_NEWLINE: Final = re.compile(r"\r\n?|\n")

# UTF-32 stands before UTF-16, whose mark it begins with.
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class RefusalError(Exception):
    """A statement is refused; whoever knows its line turns this into a `DdlError`."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.number = number


class Source:
    """A script with its file name; it knows on which line a position stands."""

    def __init__(self, text: str, file: str | None) -> None:
        self.text = text.removeprefix("\ufeff")
        self.file = file
        self._breaks = [match.end() for match in _NEWLINE.finditer(self.text)]
        if not text.isascii():
            self._refuse_surrogates()

    def line(self, position: int) -> int:
        """The line, from 1, on which a position stands."""
        return bisect_right(self._breaks, position) + 1

    def line_start(self, position: int) -> int:
        """Where the line begins on which a position stands."""
        line = bisect_right(self._breaks, position)
        return self._breaks[line - 1] if line else 0

    def place(self, position: int) -> str:
        """`file:line`, or `line n` where the script came as text."""
        line = self.line(position)
        return f"line {line}" if self.file is None else f"{self.file}:{line}"

    def error(self, position: int, reason: str, *, subject: str | None = None, number: int | None = None) -> DdlError:
        """The error for the statement that begins at a position."""
        message = refusal_text(reason, subject=subject, number=number)
        return DdlError(f"{self.place(position)}: {message}", number=number, file=self.file, line=self.line(position))

    def _refuse_surrogates(self) -> None:
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise self.error(error.start, "the text holds half a surrogate pair, which is no character") from None


def refusal_text(reason: str, *, subject: str | None, number: int | None) -> str:
    """`CREATE ROUTE [X]: error 9743: reason`, without what is not known."""
    parts = [] if subject is None else [subject]
    if number is not None:
        parts.append(f"error {number}")
    return ": ".join([*parts, reason])


def decode(data: bytes, *, file: str | None = None) -> str:
    r"""The text of a script file: UTF-8, or what its byte order mark says (SSMS saves "Unicode" as UTF-16).

    UTF-16 without a mark is recognised by its first character. Code pages are not guessed: names compare byte by byte,
    and a wrong guess would be a silent other name.

    Args:
        data: The bytes of the file.
        file: Its name, for the error.

    Returns:
        The text, without the mark and with its line ends as they were.

    Raises:
        DdlError: The bytes are neither.

    Examples:
        >>> decode(b"\xef\xbb\xbfUSE Sales")
        'USE Sales'
        >>> decode("USE Sales".encode("utf-16"))
        'USE Sales'
    """
    mark, encoding = next(((m, e) for m, e in _BYTE_ORDER_MARKS if data.startswith(m)), (b"", _encoding_of(data)))
    try:
        return data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        before = data[len(mark) : len(mark) + error.start].decode(encoding, "ignore")
        line = len(_NEWLINE.findall(before)) + 1
        place = f"line {line}" if file is None else f"{file}:{line}"
        reason = f"not {encoding.upper()} (byte 0x{error.object[error.start]:02x}); save the script as UTF-8 or UTF-16"
        raise DdlError(f"{place}: {reason}", file=file, line=line) from None


def _encoding_of(unmarked: bytes) -> str:
    if unmarked[:1] == b"\0":
        return "utf-16-be"
    return "utf-16-le" if unmarked[1:2] == b"\0" else "utf-8"
