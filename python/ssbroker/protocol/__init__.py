"""The dialog protocol between instances (P11 to P26, P31, P32, R8), without I/O, clocks or randomness.

Each side runs one `DialogEngine`. The caller provides the durable state (a `DialogStorage`), the current time (`now`, in microseconds)
and the random numbers for the jitter, and transfers the output of one engine to the other:

    engine.notify_queued(keys)                          these dialogs have committed messages in the transmission queue
    table = engine.data_to_send(now=now)                rows of `envelope.ENVELOPE`, to be routed and framed; None: nothing is due
    changes = engine.receive(table, peer=..., now=now)  the changes that a batch from the network makes; nothing is durable yet
        ... the caller writes the changes in one transaction ...
    engine.confirm(changes, now=now)                    committed: only now is anything acknowledged (P16)
    engine.undo(changes)                                rolled back: the state is as before
    engine.next_timeout()                               when `data_to_send` has data next; None: not before another call
    engine.flush(now=now)                               writes the state of idle dialogs to the work table (P32)

A batch is a table: signatures, fragmentation and reassembly are processed for all rows together, and little work is done for each row.
"""

from __future__ import annotations
