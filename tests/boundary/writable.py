"""Arrays over memory that can be modified after pyarrow has validated them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.boundary.layouts import Array, rebuilt


@dataclass(frozen=True)
class Writable:
    """An array and the memory of its buffers: its own, then those of its dictionary; missing buffers are omitted."""

    array: Array
    memory: list[bytearray | None]

    def write(self, buffer: int, at: int, data: bytes) -> Array:
        """Overwrites some bytes, and none beyond the buffer."""
        memory = self.memory[buffer]
        assert memory is not None
        assert at + len(data) <= len(memory)
        memory[at : at + len(data)] = data
        return self.array

    def write_numbers(self, buffer: int, *numbers: int | None, width: int) -> Array:
        """Overwrites numbers of that width, from the first; None leaves one unchanged."""
        for place, number in enumerate(numbers):
            if number is not None:
                self.write(buffer, place * width, number.to_bytes(width, "little", signed=number < 0))
        return self.array


def writable(array: Array) -> Writable:
    """Returns a writable copy of the array."""
    memory: list[bytearray | None] = []

    def move(buffer: pa.Buffer | None, _number: int, _length: int) -> pa.Buffer | None:
        memory.append(None if buffer is None else bytearray(buffer.to_pybytes()))
        return None if memory[-1] is None else pa.py_buffer(memory[-1])

    return Writable(rebuilt(array, move), memory)


def bitmap_of(bits: list[bool]) -> Any:
    """Returns a buffer with these bits."""
    return pa.array(bits, pa.bool_()).buffers()[1]
