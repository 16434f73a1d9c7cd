"""The adjacent broker protocol (P1): frames, and the state of a connection, without I/O.

Each end of a connection has one `Link`, created when its channel is open: after the TLS handshake, or immediately without
encryption. The owner of the socket drives it:

    link = Link(own, limits=limits, now=now)
    while parts := link.data_to_send(now=now): ...                write them: HELLO first, and about 1 MiB in each call
    for event in link.receive(data, now=now): ...                 handle the events that bytes from the peer cause
    link.send(rows)                                               queue rows of `frames.WIRE`
    link.next_timeout(), link.handle_timeout(now=now)             deadlines, PING, idleness
    link.leave(GoodbyeReason.STOPPING, now=now)                   send GOODBYE after the queued rows
    link.is_closed                                                nothing more is received or sent: close the socket

Times are in microseconds. A `PeerError` means that the peer is at fault, a `ProtocolError` that the caller is.
"""
