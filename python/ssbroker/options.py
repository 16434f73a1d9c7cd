"""Arguments that are numbers, flags or texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ssbroker.exceptions import OptionError


def whole(value: object, *, name: str, least: int, most: int) -> int:
    """A whole number within limits.

    Args:
        value: What was given.
        name: The option, for messages.
        least: The smallest number allowed.
        most: The largest.

    Returns:
        The number.

    Raises:
        OptionError: It is no whole number, or not within the limits.

    Examples:
        >>> whole(4096, name="max_fragment_bytes", least=1, most=2**31 - 1)
        4096
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionError(f"{name}: expected a whole number from {least} to {most}; got {value!r:.80}")
    return value


def number(value: object, *, name: str, least: float, most: float) -> float:
    """A number within limits.

    Args:
        value: What was given.
        name: The option, for messages.
        least: The smallest number allowed.
        most: The largest.

    Returns:
        The number.

    Raises:
        OptionError: It is no number, or not within the limits.

    Examples:
        >>> number(0.25, name="loss", least=0, most=1)
        0.25
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise OptionError(f"{name}: expected a number from {least:,} to {most:,}; got {value!r:.80}")
    return value


def seconds(value: object, *, name: str) -> float:
    """How long to wait.

    Args:
        value: What was given.
        name: The option, for messages.

    Returns:
        The seconds; infinity where it is more than a float holds.

    Raises:
        OptionError: It is no number, or below 0.

    Examples:
        >>> seconds(0.5, name="timeout"), seconds(10**400, name="timeout")
        (0.5, inf)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise OptionError(f"{name}: expected seconds, 0 or more; got {value!r:.80}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def flag(value: object, *, name: str) -> bool:
    """True or False, and nothing that only counts as one.

    Args:
        value: What was given.
        name: The option, for messages.

    Returns:
        The same.

    Raises:
        OptionError: It is no boolean.

    Examples:
        >>> flag(True, name="in_order")
        True
    """
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected True or False; got {value!r:.80}")
    return value


def texts(values: object, *, name: str) -> list[str]:
    """A sequence of texts, which a lone text is not.

    Args:
        values: What was given.
        name: The option, for messages.

    Returns:
        The texts.

    Raises:
        OptionError: It is no sequence, or one of the values is no text that UTF-8 can write.

    Examples:
        >>> texts(("TCP://a", "TCP://b"), name="addresses")
        ['TCP://a', 'TCP://b']
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise OptionError(f"{name}: expected a sequence of texts, got {values!r:.80}")
    wrong = [value for value in values if not is_text(value)]
    if wrong:
        raise OptionError(f"{name}: expected a sequence of texts, one is {wrong[0]!r:.80}")
    return list(values)


def is_text(value: object) -> bool:
    r"""Whether it is text that UTF-8 can write: a lone surrogate, as Python reads bytes of a command line that are no text, is none.

    Examples:
        >>> is_text("//Größe"), is_text("\udcff"), is_text(b"//Orders")
        (True, False, False)
    """
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
