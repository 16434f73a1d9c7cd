"""Bytes of hostile peers against a link: `python -m tests.protocol.wire.link_fuzz --inputs 30000000 --seed 1`.

It prints the outcomes. Each input is a sequence of frames, some of them altered, truncated, duplicated or swapped, with
wrong or recomputed checksums, in pieces of any size. The batch decoder has its own fuzzer, `FUZZ_TARGETS=wire
FUZZ_RUNS=3400000 make fuzz`.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from typing import Final

from ssbroker._core import crc32c
from ssbroker.exceptions import PeerError
from ssbroker.protocol.wire import frames
from ssbroker.protocol.wire.frames import HEADER_BYTES, FrameKind, GoodbyeReason, encode_frame, pack_batch
from ssbroker.protocol.wire.link import FragmentsArrived, Link, LinkLimits, RoleQuery
from tests.protocol.wire.links import BANK, numbered, own, sent_pieces

DATABASE: Final = b"id of a database"
FRAMES: Final = {
    FrameKind.HELLO: encode_frame(FrameKind.HELLO, frames.pack_hello(own(BANK, name="bank"))),
    FrameKind.FRAGMENTS: encode_frame(FrameKind.FRAGMENTS, pack_batch(numbered(3))),
    FrameKind.ROLE_QUERY: encode_frame(FrameKind.ROLE_QUERY, DATABASE),
    FrameKind.ROLE_REPLY: encode_frame(FrameKind.ROLE_REPLY, frames.pack_role(DATABASE, "mirror", 1)),
    FrameKind.PING: encode_frame(FrameKind.PING),
    FrameKind.PONG: encode_frame(FrameKind.PONG),
    FrameKind.GOODBYE: encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(GoodbyeReason.STOPPING, "bye")),
    FrameKind.DROPPED: encode_frame(FrameKind.DROPPED, bytes(16) + b"\x01\x01"),
}
ANSWER_BYTES_MAX: Final = 1024
"""Maximum bytes of an answer beyond its input: HELLO and GOODBYE."""


def stream(rng: random.Random) -> bytes:
    """Returns the bytes of a hostile peer."""
    kinds = [FrameKind.HELLO] * (rng.random() < 0.9) + rng.choices(list(FrameKind), k=rng.randrange(5))
    frames = [FRAMES[kind] for kind in kinds]
    if frames and rng.random() < 0.9:
        at = rng.randrange(len(frames))
        frames[at] = altered(frames[at], rng)
    if rng.random() < 0.1:
        rng.shuffle(frames)
    return b"".join(frames)


def altered(frame: bytes, rng: random.Random) -> bytes:
    """Returns a frame with an error; half of the time with a correct checksum, a quarter with a correct length."""
    data = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randrange(16)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(16))
            case _:
                data[at : at + 8] = rng.choice((bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7))
    if len(data) >= HEADER_BYTES and rng.random() < 0.5:
        if rng.random() < 0.5:
            data[8:12] = (len(data) - HEADER_BYTES).to_bytes(4, "big")
        data[12:16] = crc32c(bytes(data[HEADER_BYTES:]), crc32c(bytes(data[:12]), 0)).to_bytes(4, "big")
    return bytes(data)


def attack(rng: random.Random) -> str:
    """Runs one input; returns the outcome."""
    link = Link(own(), limits=LinkLimits(), now=0)
    link.query_role(DATABASE)
    data, took, answered = stream(rng), Counter[str](), 0
    while data:
        cut = rng.randrange(len(data)) + 1
        piece, data = data[:cut], data[cut:]
        try:
            occurrences = link.receive(piece, now=0)
        except PeerError as error:
            assert len(b"".join(sent_pieces(link))) <= ANSWER_BYTES_MAX
            assert link.is_closed
            return str(error).split(":", maxsplit=1)[0].split(";", maxsplit=1)[0]
        for occurrence in occurrences:
            took[type(occurrence).__name__] += 1
            if isinstance(occurrence, FragmentsArrived):
                occurrence.rows.validate(full=True)
            elif isinstance(occurrence, RoleQuery):
                link.reply_role(occurrence.broker_instance, "unknown", 0)
        answered += len(b"".join(sent_pieces(link)))
        assert answered <= cut * 2 + ANSWER_BYTES_MAX * (1 + took.total())
    link.next_timeout()
    return "taken" if took else "waits for more"


def figures(inputs: int, *, seed: int) -> Counter[str]:
    """Runs that many inputs, and counts the outcomes."""
    rng = random.Random(seed)
    return Counter(attack(rng) for _ in range(inputs))


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for what, count in figures(arguments.inputs, seed=arguments.seed).most_common():
        print(f"{count:12,}  {what}")


if __name__ == "__main__":
    main()
