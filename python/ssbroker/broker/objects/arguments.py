"""Arguments of the calls that define objects: SQLite would keep whatever it is given, and `"OFF"` would read as true."""

from __future__ import annotations

from ssbroker import options
from ssbroker.exceptions import OptionError


def check_flags(**given: object) -> None:
    """Refuses what is neither True nor False, nor None, which says nothing.

    Raises:
        OptionError: One is something else.

    Examples:
        >>> check_flags(status=None, retention="OFF")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: retention: expected True or False; got 'OFF'
    """
    for name, value in given.items():
        if value is not None:
            options.flag(value, name=name)


def check_numbers(**given: object) -> None:
    """Refuses what is no whole number, nor None; which numbers there may be is another question.

    Raises:
        OptionError: One is something else.

    Examples:
        >>> check_numbers(lifetime=1.5)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: lifetime: expected a whole number; got 1.5
    """
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise OptionError(f"{name}: expected a whole number; got {value!r:.80}")


def check_texts(**given: object) -> None:
    """Refuses what is no text, nor None.

    Raises:
        OptionError: One is something else; it is not shown, for it may be a password.

    Examples:
        >>> check_texts(address="LOCAL", service_name=b"//Orders")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: service_name: expected text that UTF-8 can write; got bytes
    """
    for name, value in given.items():
        if value is not None and not options.is_text(value):
            raise OptionError(f"{name}: expected text that UTF-8 can write; got {type(value).__name__}")


def check_bytes(**given: object) -> None:
    """Refuses what is no bytes, nor None.

    Raises:
        OptionError: One is something else; it is not shown, for it may be a key.

    Examples:
        >>> check_bytes(certificate=None, private_key="-----BEGIN PRIVATE KEY-----")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: private_key: expected bytes, as a file is read in binary; got str
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, bytes):
            raise OptionError(f"{name}: expected bytes, as a file is read in binary; got {type(value).__name__}")
