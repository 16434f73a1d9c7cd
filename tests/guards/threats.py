"""Every threat that the system was built against, with what it does about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Threat:
    """A threat.

    Attributes:
        number: As tests and documents cite it.
        summary: The threat in a few words.
        answer: What is done about it.
    """

    number: str
    summary: str
    answer: str


THREATS: Final = (
    Threat(
        "T1",
        "an MD5, encrypted or not, is taken for a proof",
        "secured dialogs demand a keyed tag over header and part; MD5 alone only when asked for",
    ),
    Threat(
        "T2",
        "fragments are replayed, reflected or spliced",
        "the tag holds dialog, direction, numbers, broker ids and names; what was taken before is a duplicate",
    ),
    Threat("T3", "a declared size is believed", "nothing is allocated by a number that was declared"),
    Threat(
        "T4",
        "limits hold on one side only, or too late",
        "both sides judge every frame, before HELLO by a smaller limit",
    ),
    Threat(
        "T5",
        "strangers take memory",
        "16 KiB for each unproven connection, 1,000 of them, and only HELLO has an effect",
    ),
    Threat(
        "T6",
        "a stranger is taken for a broker",
        "nobody without a certificate that is known; one machine of states for a connection",
    ),
    Threat("T7", "something small unpacks to something huge", "nothing on the wire is compressed"),
    Threat("T8", "fragments overlap", "they have numbers and no offsets; one that contradicts is refused alone"),
    Threat(
        "T9",
        "fragments hold nothing",
        "what is charged for a fragment does not depend on its body, so that none is free",
    ),
    Threat("T10", "numbers jump far ahead", "taken up to a distance; at the end of the numbers nothing wraps"),
    Threat(
        "T11",
        "acknowledgements are forged, or come too early",
        "signed in secured dialogs; beyond what was sent nothing is believed",
    ),
    Threat("T12", "names are chosen to collide", "hashes have keys of their own in every process"),
    Threat(
        "T13",
        "connections are slow, half open, or come in storms",
        "deadlines for each state, limits, a rate for each address, waits with jitter",
    ),
    Threat("T14", "a broker id is copied", "a broker id is an address; dialogs are bound to keys and principals"),
    Threat("T15", "a weaker protection is negotiated", "nothing is negotiated: TLS 1.3, and what the binding asks for"),
    Threat(
        "T16",
        "routes lead in circles",
        "hops and seconds are counted; what came from a neighbour does not go back to it",
    ),
    Threat(
        "T17",
        "a message reaches another service",
        "the destination is in the tag; who receives looks whether it is its own",
    ),
    Threat("T18", "a route carries code", "routes are data, and nothing of a peer's is evaluated"),
    Threat(
        "T19", "Arrow data are malformed", "metadata, offsets, UTF-8 and null counts are checked before they are used"
    ),
    Threat("T20", "threads do not survive a fork", "native code starts none"),
    Threat("T21", "a task that is run again decides otherwise", "the pick is a function of the conversation's id"),
    Threat(
        "T22",
        "conversations are left behind",
        "lifetimes, one object of 1 KiB for each that is active, findings of lint",
    ),
    Threat("T23", "both partners claim to be the principal", "the later claim wins, else nothing is sent"),
    Threat(
        "T24",
        "unsafe code, or a library that turns bad",
        "few libraries, locked; unsafe code in seven small places with reasons",
    ),
    Threat(
        "T25",
        "a restore or a new id destroys conversations",
        "each is asked for by its name; attaching changes nothing by itself",
    ),
)
