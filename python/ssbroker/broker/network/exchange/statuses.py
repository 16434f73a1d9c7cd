"""What `transmission_status` says of conversations with other instances (facts 152, 153)."""

from __future__ import annotations

from ssbroker.broker.dialogs.status import Status


def unreachable(address: str, why: str) -> Status:
    """There is no connection to where the messages go next.

    Args:
        address: Where that is.
        why: What dialling it, or the connection that broke, said.

    Returns:
        The status.

    Examples:
        >>> print(str(unreachable("TCP://bank:4022", "connection refused"))[:70])
        9754: TCP://bank:4022, where the message goes next, cannot be reached:
    """
    return Status(
        9754,
        f"{address}, where the message goes next, cannot be reached: {why}. It is dialled again by itself. If the address is wrong, "
        "ALTER ROUTE <name> WITH ADDRESS = N'TCP://<host>:<port>';",
    )


def unacknowledged(address: str) -> Status:
    """The messages went out, and nobody says that they arrived.

    Args:
        address: Where they went.

    Returns:
        The status.

    Examples:
        >>> print(str(unacknowledged("TCP://bank:4022"))[:55])
        9753: sent to TCP://bank:4022, and not acknowledged yet
    """
    return Status(
        9753,
        f"sent to {address}, and not acknowledged yet. It is sent again by itself. If this stays, look at the target's events "
        "(Message Undeliverable, Message Classify), at its route back to this instance's service, and at the forwarders between.",
    )


def without_keys(why: str) -> Status:
    """What secures the conversation cannot be read or written here.

    Args:
        why: What failed.

    Returns:
        The status.

    Examples:
        >>> print(str(without_keys("service_master.key: expected a key of 32 bytes; it has 2"))[:55])
        28050: the dialog is to be secured, and its keys cannot
    """
    return Status(
        28050, f"the dialog is to be secured, and its keys cannot be had: {why}. It is tried again by itself."
    )


def held(address: str, mirror_address: str) -> Status:
    """Neither of two mirrored addresses is known to be the principal (R54).

    Args:
        address: The one.
        mirror_address: The other.

    Returns:
        The status.

    Examples:
        >>> print(str(held("TCP://a:4022", "TCP://b:4022"))[:73])
        9787: neither TCP://a:4022 nor TCP://b:4022 says that it is the principal
    """
    return Status(
        9787,
        f"neither {address} nor {mirror_address} says that it is the principal of the mirrored database, so nothing is sent. Both are "
        "asked again by themselves.",
    )
