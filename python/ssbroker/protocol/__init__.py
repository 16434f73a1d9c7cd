"""The dialog protocol between instances (P11 to P26, P31, P32, R8), without I/O, clock or randomness.

One machine, `Dialogs`, stands on each side. Whoever runs it brings the durable state (a `Ledger`), the moment (`now`, in microseconds)
and the numbers for the jitter, and carries what the machine gives to the other side:

    dialogs.queued(keys)                                these dialogs have committed messages in the transmission queue
    table = dialogs.data_to_send(now=now)               rows of `envelope.ENVELOPE`, to be routed and framed; None: nothing is due
    effects = dialogs.arrived(table, peer=..., now=now) what a batch from the network comes to, as a value: nothing is durable yet
        ... the ledger's owner puts the effects into one transaction ...
    dialogs.confirm(effects, now=now)                   it has committed: only now is anything acknowledged (P16)
    dialogs.undo(effects)                               it was rolled back: everything is as it was before
    dialogs.next_timeout()                              the moment at which `data_to_send` has something again, None: never by itself
    dialogs.flush(now=now)                              what has been idle goes to the work table (P32)

A batch is a table: what is done for each row is little, and signatures, cuts and reassembly are done for all rows at once.
"""

from __future__ import annotations
