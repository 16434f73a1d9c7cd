"""Who may begin conversations with a service from another instance (N20, facts 177 and 185)."""

from __future__ import annotations

from ssbroker.store.objects import Objects, Service
from ssbroker.store.security import PUBLIC


def may_send(objects: Objects, service: Service, certificate: bytes | None) -> bool:
    """Whether a sender may begin a conversation with a service.

    Args:
        objects: What stands in the service's database.
        service: The service.
        certificate: By which certificate the sender has proven itself, as its fingerprint; None for who did not: that is public.

    Returns:
        Whether it was granted SEND, or the service is its own.
    """
    security = objects.security
    holder = None if certificate is None else security.by_fingerprint.get(certificate)
    sender = PUBLIC if holder is None else holder.principal_id
    return security.may_send(service.service_id, sender, owner=service.principal_id)
