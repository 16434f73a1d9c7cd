"""The adjacent broker protocol (P1): frames, and the two machines without I/O that know what a connection is and which of two stays.

One `Link` stands at each end of a connection, made when TLS has been agreed. Whoever has the socket runs it:

    link = Link(own, is_accept=False, now=now)
    while pieces := link.data_to_send(now=now): ...               write them: first HELLO, then what is to go, a little at a time
    for occurrence in link.received(data, now=now): ...           what the bytes from the far side come to, as values
    link.send(rows)                                               rows of `batch.WIRE`, kept until `data_to_send` gives them
    link.next_timeout(), link.handle_timeout(now=now)             deadlines, PING, idleness
    link.leave(Reason.STOPPING)                                   GOODBYE, behind what is still to go
    link.is_over                                                  nothing comes and nothing goes any more: close the socket

Times are microseconds. `PeerError` is the far side's fault, `ProtocolError` that of who runs the link.
"""

from __future__ import annotations
