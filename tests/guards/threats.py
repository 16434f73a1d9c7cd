"""Every threat that the system is built to resist, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Threat:
    """A threat.

    Attributes:
        number: Its number in tests and documents.
        summary: The threat in a few words.
        answer: The countermeasure.
    """

    number: str
    summary: str
    answer: str


THREATS: Final = (
    Threat(
        "T1",
        "an MD5, encrypted or not, is accepted as proof of origin",
        "secured dialogs require a keyed signature of header and part; MD5 alone only on request",
    ),
    Threat(
        "T2",
        "fragments are replayed, reflected or spliced",
        "the signature covers dialog, direction, numbers, broker ids and names; what was received before is a duplicate",
    ),
    Threat(
        "T3",
        "a peer declares a huge size",
        "no memory is allocated because of a declared size",
    ),
    Threat(
        "T4",
        "limits are checked by one peer only, or too late",
        "both peers check every frame, with a lower limit before HELLO, the first frame",
    ),
    Threat(
        "T5",
        "strangers use up memory",
        "16 KiB for each unauthenticated connection, at most 1,000 of them, and only their HELLO has an effect",
    ),
    Threat(
        "T6",
        "a stranger poses as a broker",
        "only peers with a trusted certificate may connect; each connection follows one state machine",
    ),
    Threat(
        "T7",
        "a small input expands to a huge one",
        "nothing on the wire is compressed",
    ),
    Threat(
        "T8",
        "fragments overlap",
        "fragments have numbers, not offsets; only the contradicting fragment is rejected",
    ),
    Threat(
        "T9",
        "fragments are empty",
        "every fragment counts with a fixed number of bytes besides its body, so none is free",
    ),
    Threat(
        "T10",
        "sequence numbers jump far ahead",
        "accepted up to a distance; nothing wraps at the highest number",
    ),
    Threat(
        "T11",
        "acknowledgements are forged or premature",
        "signed in secured dialogs; ignored beyond what was sent",
    ),
    Threat(
        "T12",
        "names are chosen to collide in hash tables",
        "hashes are keyed differently in every process",
    ),
    Threat(
        "T13",
        "connections are slow, half open, or arrive in storms",
        "deadlines for each state, limits, a rate for each address, backoff with jitter",
    ),
    Threat(
        "T14",
        "a broker id is copied",
        "a broker id is only an address; dialogs are bound to keys and principals",
    ),
    Threat(
        "T15",
        "a weaker protection is negotiated",
        "nothing is negotiated: always TLS 1.3, and the protection that the binding requires",
    ),
    Threat(
        "T16",
        "routes form a loop",
        "hops and lifetime are limited; a row never returns to the peer that sent it",
    ),
    Threat(
        "T17",
        "a message reaches another service",
        "the signature covers the destination, and the receiver checks it",
    ),
    Threat(
        "T18",
        "a route contains code",
        "routes are data; nothing from a peer is evaluated",
    ),
    Threat(
        "T19",
        "Arrow data is malformed",
        "metadata, offsets, UTF-8 and null counts are checked before use",
    ),
    Threat(
        "T20",
        "threads do not survive a fork",
        "native code starts no threads",
    ),
    Threat(
        "T21",
        "a retried task makes a different choice",
        "the choice is a function of the conversation id",
    ),
    Threat(
        "T22",
        "conversations are abandoned",
        "lifetimes, at most 1 KiB of state for each active conversation, findings of `lint`",
    ),
    Threat(
        "T23",
        "both mirrors claim to be the principal",
        "the later claim wins; if neither is later, nothing is sent",
    ),
    Threat(
        "T24",
        "unsafe code, or a compromised library",
        "few libraries, with locked versions; unsafe code in a few small modules, each with a stated reason",
    ),
    Threat(
        "T25",
        "a restore or a new id destroys conversations",
        "each needs an explicit option; attaching alone changes nothing",
    ),
)
