"""Every rule of the system in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """A numbered rule.

    Attributes:
        number: As tests and documents cite it.
        says: The rule in a few words.
    """

    number: str
    says: str


ROUTING: Final = (
    Rule("R1", "each database has a routing table; msdb's serves what arrives from outside"),
    Rule("R2", "begun here: that database's table; from outside: msdb's; the same process"),
    Rule("R3", "a route is ignored, not removed, from its lifetime on"),
    Rule("R4", "find, choose, and locate where the address is LOCAL"),
    Rule("R5", "names compare byte by byte, broker ids as GUIDs"),
    Rule("R6", "what an address is, and when two are the same"),
    Rule("R7", "a reply whose broker id is in this instance is delivered without routes"),
    Rule("R8", "later messages carry the broker id that bound the conversation, and reach the same database"),
    Rule("R11", "step 1: this service and this broker id"),
    Rule("R12", "step 2: this service, no broker id"),
    Rule("R13", "step 3: this service and one of its broker ids, for a conversation without one"),
    Rule("R14", "step 4: a dynamic routing service is asked, the conversation waits"),
    Rule("R15", "step 5: routes that name neither service nor broker id"),
    Rule("R16", "step 6: a service of this instance stands in as a LOCAL route"),
    Rule("R17", "step 7: DELAYED"),
    Rule("R18", "no route is no error; what is delayed is matched again later"),
    Rule("R19", "mirror addresses play no part in finding"),
    Rule("R20", "a route with a broker id and no service never matches"),
    Rule("R21", "routes that say the same count once"),
    Rule("R22", "mirrored, LOCAL, network, TRANSPORT: the first class with a usable route"),
    Rule("R23", "TRANSPORT takes its next hop from the service name"),
    Rule("R24", "how one is picked among equals: hash, round_robin, first"),
    Rule("R25", "forwarding off: what came from outside goes nowhere else"),
    Rule("R26", "nothing usable: DELAYED if begun here, DROPPED if from outside"),
    Rule("R31", "LOCAL with a broker id: the database that has the id"),
    Rule("R32", "LOCAL without: the conversation's own database, then one of the others"),
    Rule("R33", "a disabled database's services are not found"),
    Rule("R34", "what a disabled database began stays where it is"),
    Rule("R41", "an address of this instance: once more, as if from outside"),
    Rule("R42", "what came from outside and would come back here is dropped"),
    Rule("R43", "a forwarder acknowledges nothing and keeps nothing but in memory, within its limit"),
    Rule("R51", "a mirrored route yields both addresses"),
    Rule("R52", "once the principal is known, everything goes to it"),
    Rule("R53", "the mirror is used only when it says that it is the principal"),
    Rule("R54", "otherwise both are asked again and nothing is sent"),
    Rule("R61", "one request for a missing route at a time for each service"),
    Rule("R62", "its answer, a route or an error, has the waiting conversations routed again"),
)

PROTOCOL: Final = (
    Rule("P1", "three layers: dialog, adjacent broker, transport"),
    Rule("P2", "conversations outlive connections"),
    Rule("P3", "no endpoint until one is made"),
    Rule("P11", "sequenced messages once and in order; the others on arrival"),
    Rule("P12", "each direction numbers its messages from 0"),
    Rule("P13", "large messages go in fragments, and only a lost one goes again"),
    Rule("P14", "what is early or incomplete is kept and not received"),
    Rule("P15", "everything is acknowledged, together where possible"),
    Rule("P16", "acknowledged only when durable; kept by the sender until then"),
    Rule("P17", "sent again after waits that double"),
    Rule("P18", "a duplicate is acknowledged and not delivered"),
    Rule("P21", "the signature of the content is checked"),
    Rule("P22", "dialogs are authenticated and sealed"),
    Rule("P23", "a fragment may have a signature of its own"),
    Rule("P24", "TLS with certificates on both sides"),
    Rule("P25", "a broker id is no credential"),
    Rule("P26", "memory follows bytes received, not numbers declared"),
    Rule("P31", "a transmission object for each endpoint that needs one"),
    Rule("P32", "idle ones are flushed"),
    Rule("P33", "straight into a queue of the same instance"),
    Rule("P34", "a queue that is off lets messages wait"),
)

IDENTITY: Final = (
    Rule("I1", "each database has a broker id of its own"),
    Rule("I2", "broker off: nothing leaves, nothing is found"),
    Rule("I3", "a dialog may name the copy of the service that it wants"),
    Rule("I4", "ENABLE_BROKER and DISABLE_BROKER keep the id"),
    Rule("I5", "NEW_BROKER gives a new id and ends conversations"),
    Rule("I6", "ERROR_BROKER_CONVERSATIONS ends them and keeps the id"),
    Rule("I7", "never two enabled databases with one id"),
    Rule("I8", "attach and restore leave id and state alone"),
)

RULES: Final = (*ROUTING, *PROTOCOL, *IDENTITY)
