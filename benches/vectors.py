"""The same work with each length of vectors that this processor has, in one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from ssbroker import _core

Result = TypeVar("Result")


def _names() -> dict[str, int]:
    names = {_core.limit_vectors(bits): bits for bits in (0, 256, 512)}
    _core.limit_vectors(None)
    return {str(name): names[name] for name in reversed(names)}


VECTORS: Final = _names()
"""The vector instructions that MD5 can use here, the longest first, with their length in bits."""


def with_vectors(name: str, work: Callable[[], Result]) -> dict[str, Callable[[], Result]]:
    """Returns the work as lanes for `race`, one for each of `VECTORS`, named `name, vectors`."""
    return {f"{name}, {vectors}": _limited(work, bits) for vectors, bits in VECTORS.items()}


def _limited(work: Callable[[], Result], bits: int) -> Callable[[], Result]:
    def limited() -> Result:
        _core.limit_vectors(bits)
        try:
            return work()
        finally:
            _core.limit_vectors(None)

    return limited
