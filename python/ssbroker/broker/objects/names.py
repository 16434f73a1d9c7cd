"""What may be the name of an object."""

from __future__ import annotations

from ssbroker.broker.objects.refusals import refusal
from ssbroker.ddl.cursor import check_name
from ssbroker.ddl.source import RefusalError


def check_object_name(name: str) -> None:
    """Refuses what is no name of an object: an empty one (1038), or one of more than 128 characters (103).

    Raises:
        BrokerError: It is none.
    """
    given: object = name
    if not isinstance(given, str):
        raise refusal(f"{given!r:.80} is no name: expected text")
    try:
        check_name(name)
        name.encode()
    except RefusalError as refused:
        raise refusal(refused.reason, refused.number) from None
    except UnicodeEncodeError:
        raise refusal(f"the name {name!r} holds half a surrogate pair, which is no character") from None
