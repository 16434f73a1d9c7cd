"""What of a statement is told in warnings and errors. They end up in logs, so it is nothing that may be a password."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from ssbroker.ddl.tokens import Token

_SECRETS: Final = frozenset({"PASSWORD", "SECRET"})
_MAY_HAVE_SECRETS: Final = _SECRETS | {"KEY"}
_CALLS: Final = frozenset({"EXEC", "EXECUTE"})
_TOKENS_MAX: Final = 60
_CHARACTERS_MAX: Final = 40
_UNTOLD: Final = "'...'"


def beginning(text: str, tokens: Sequence[Token], *, is_call: bool) -> str:
    """The beginning of a statement that is skipped, without its strings; of a call, or a command of sqlcmd, the name alone.

    Args:
        text: The script.
        tokens: Those of the statement.
        is_call: Whether it may call a procedure without EXEC, as the first statement of a batch may.

    Returns:
        The words, with one blank for all that stands between two of them.
    """
    shown = end = min(len(tokens), _TOKENS_MAX)
    call = 0 if is_call or tokens[0].key == ":" else next(filter(partial(_calls, tokens), range(end)), None)
    if call is not None:
        end = min(end, _callee(tokens, call))
    words = ""
    for index, token in enumerate(tokens[:end]):
        gap = " " if index and token.start > tokens[index - 1].end else ""
        words += gap + (
            _UNTOLD if _is_quoted(text, token) or _is_secret(tokens, index) else text[token.start : token.end]
        )
    return words if end == shown else f"{words} ..."


def last(text: str, tokens: Sequence[Token]) -> str:
    """The last of some tokens of a statement that is read, shortened; without its text where it may be a secret."""
    token = tokens[-1]
    may_be = _is_quoted(text, token) and any(one.key in _MAY_HAVE_SECRETS for one in tokens)
    told = _UNTOLD if may_be or _is_secret(tokens, len(tokens) - 1) else text[token.start : token.end]
    return told if len(told) <= _CHARACTERS_MAX else told[:_CHARACTERS_MAX] + "..."


def _calls(tokens: Sequence[Token], index: int) -> bool:
    """Whether a procedure is called here; `GRANT EXECUTE ON` and `EXECUTE AS` call none."""
    following = tokens[index + 1].key if index + 1 < len(tokens) else ""
    return tokens[index].key in _CALLS and following not in ("AS", "ON")


def _callee(tokens: Sequence[Token], call: int) -> int:
    """Where the name ends of what is called: `EXEC @status = dbo.p`, `:connect`."""
    end = min(call + 2, len(tokens))
    while end < len(tokens) and {tokens[end - 1].key, tokens[end].key} & {".", "="}:
        end += 1
    return end


def _is_quoted(text: str, token: Token) -> bool:
    return token.kind == "string" or text[token.start] == '"'


def _is_secret(tokens: Sequence[Token], index: int) -> bool:
    """Whether it is what follows PASSWORD or SECRET, quoted or not."""
    return tokens[index].key != "=" and any(one.key in _SECRETS for one in tokens[max(index - 2, 0) : index])
