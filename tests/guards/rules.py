"""Every rule in one sentence, as in `docs/reference/rules.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """A numbered rule.

    Attributes:
        number: As tests and documents cite it.
        summary: The rule in one sentence, without a full stop.
    """

    number: str
    summary: str


ROUTING: Final = (
    Rule("R1", "Every database has a routing table; the table of `msdb` routes messages from outside the instance"),
    Rule(
        "R2",
        "A conversation is routed by the table of the database where it started, or of `msdb` if it arrived from another instance",
    ),
    Rule("R3", "An expired route is ignored, but not deleted"),
    Rule(
        "R4",
        "Routing has three steps: find the matching routes, choose one of them and, if its address is `LOCAL`, locate the target service",
    ),
    Rule("R5", "Names are compared byte by byte; broker ids are compared as GUIDs"),
    Rule(
        "R6",
        "An address is `TCP://host:port`, `LOCAL` or `TRANSPORT`; two addresses are equal if their normal forms are equal",
    ),
    Rule(
        "R7",
        "A reply from another instance is delivered in this instance, without reading routes, if a database of the instance has the broker id that the reply names",
    ),
    Rule(
        "R8",
        "After the first acknowledgement, all messages of a conversation carry the broker id that this acknowledgement contained, and reach the same database",
    ),
    Rule("R11", "Step 1: the conversation names a broker id, and routes have its service name and this broker id"),
    Rule("R12", "Step 2: routes have the service name and no broker id"),
    Rule("R13", "Step 3: the conversation names no broker id, and routes have the service name and a broker id"),
    Rule(
        "R14",
        "Step 4: if the table has a route to the configuration service, this service is asked for a route, and the conversation is `DELAYED`",
    ),
    Rule("R15", "Step 5: routes have neither a service name nor a broker id"),
    Rule(
        "R16",
        "Step 6: the conversation names a broker id, and a database of this instance has the service; this counts as a `LOCAL` route",
    ),
    Rule("R17", "Step 7: no route was found; the conversation is `DELAYED`"),
    Rule("R18", "Finding no route is not an error: a `DELAYED` conversation is matched again after a timeout"),
    Rule("R19", "Mirror addresses are ignored when routes are matched"),
    Rule("R20", "A route with a broker id but no service name never matches"),
    Rule("R21", "Routes with the same service name, broker id and address count as one"),
    Rule(
        "R22",
        "The first class that contains a usable route is used: mirrored routes, `LOCAL`, network addresses, `TRANSPORT`",
    ),
    Rule(
        "R23", "A `TRANSPORT` route takes the next hop from the service name, which must start with `[TCP://]host:port`"
    ),
    Rule("R24", "One of several equal candidates is picked by `tie_break`: `hash`, `round_robin` or `first`"),
    Rule("R25", "Without forwarding, a message from another instance whose chosen address is not `LOCAL` is `DROPPED`"),
    Rule(
        "R26",
        "If no class has a usable route, a conversation that started here is `DELAYED`, and a message from another instance is `DROPPED`",
    ),
    Rule("R31", "If the conversation or the route names a broker id, the message goes to the database with this id"),
    Rule(
        "R32",
        "Without a broker id, the conversation's own database is tried first, then the other databases of the instance",
    ),
    Rule("R33", "The services of a database whose broker is disabled are not found"),
    Rule(
        "R34",
        "A conversation that started in a database whose broker is disabled is `DELAYED`; its messages stay in the transmission queue",
    ),
    Rule(
        "R41",
        "If the next hop is an address of this instance, the conversation is routed again, as if it had arrived from another instance",
    ),
    Rule(
        "R42",
        "A forwarder drops a message whose hops or lifetime are used up; a message that arrived from another instance and would return to this one is a `routing_loop`",
    ),
    Rule(
        "R43", "A forwarder acknowledges nothing, reassembles nothing, and keeps messages in memory only, up to a limit"
    ),
    Rule("R51", "Before a mirrored route is first used, both addresses are asked which of them is the principal"),
    Rule("R52", "Once the principal is known, all messages of the route go to it, and the mirror is not contacted"),
    Rule(
        "R53",
        "If the principal is unreachable or gives up the role, messages go to the other address only if the server there claims the role",
    ),
    Rule(
        "R54",
        "While no principal is known, nothing is sent, and both addresses are asked again until one of them is the principal",
    ),
    Rule(
        "R61",
        "A missing route is requested by a dialog with the configuration service, one request at a time for each database and service",
    ),
    Rule(
        "R62",
        "The configuration service answers a request by creating a route, or with an error; the waiting conversations are then routed again",
    ),
)

PROTOCOL: Final = (
    Rule("P1", "The protocol has three layers: dialog protocol, adjacent broker protocol and transport"),
    Rule("P2", "A conversation is persistent and may use any number of connections; an idle connection is closed"),
    Rule("P3", "An instance has no endpoint until one is created; the conventional port is 4022"),
    Rule("P11", "Sequenced messages are delivered in order and exactly once; unsequenced ones are handled on arrival"),
    Rule("P12", "The sender numbers the messages of each direction from 0; a number that occurs again is a duplicate"),
    Rule(
        "P13",
        "A large message is sent in fragments; only lost fragments are sent again, and small messages may be sent between them",
    ),
    Rule("P14", "An incomplete or early message is stored, and cannot be received by the application"),
    Rule(
        "P15",
        "Every message is acknowledged; one acknowledgement may cover many fragments, and travels with a reply if there is one",
    ),
    Rule(
        "P16",
        "A message or fragment is acknowledged only when it is durable; until then the sender keeps it in its transmission queue",
    ),
    Rule("P17", "Unacknowledged fragments are sent again after 4, 8, 16, 32 and 64 seconds, then every 64 seconds"),
    Rule("P18", "A duplicate is acknowledged again and not delivered again"),
    Rule(
        "P21",
        "A message carries the MD5 of its content, encrypted with the session key; if the MD5 does not match, the message is dropped",
    ),
    Rule("P22", "The dialog protocol authenticates and encrypts dialogs"),
    Rule(
        "P23",
        "A fragment may carry its own signature, so that a damaged fragment is dropped and resent without the rest of its message",
    ),
    Rule("P24", "Connections use TLS with certificates at both ends; the certificate decides who may connect"),
    Rule("P25", "A broker id is an address, not a credential"),
    Rule("P26", "Memory grows with the bytes received, never with numbers that a sender declares"),
    Rule(
        "P31",
        "Every endpoint that uses the transmission queue or the network has one transmission object, created at first use",
    ),
    Rule(
        "P32", "A change marks a transmission object as dirty; inactive objects are written to a work table in batches"
    ),
    Rule(
        "P33",
        "A message to a queue of the same instance goes directly into this queue, or into the sender's transmission queue if direct delivery fails",
    ),
    Rule("P34", "While a queue is disabled, messages for it wait in the transmission queue of the receiving database"),
)

IDENTITY: Final = (
    Rule("I1", "Every database has a broker id that is unique in the network"),
    Rule(
        "I2",
        "While a broker is disabled, messages of its database stay in the transmission queue, and its services are not found",
    ),
    Rule(
        "I3", "BEGIN DIALOG may name the broker id of the target; without one, the copies of the service share the load"
    ),
    Rule("I4", "`ENABLE_BROKER` and `DISABLE_BROKER` keep the broker id"),
    Rule(
        "I5",
        "`NEW_BROKER` enables the broker, changes its id, and ends every conversation of the database with an error",
    ),
    Rule(
        "I6", "`ERROR_BROKER_CONVERSATIONS` enables the broker, keeps its id, and ends every conversation with an error"
    ),
    Rule("I7", "Two databases of one instance with the same broker id are never both enabled"),
    Rule("I8", "Attaching and restoring keep the broker id and its state, unless I7 or an option changes them"),
)

RULES: Final = (*ROUTING, *PROTOCOL, *IDENTITY)
