"""Options for the instances of a fleet: certificates of one authority, or no encryption."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ssbroker.broker.network.tls import Trust
from ssbroker.security.certificates import Validity, make_authority, make_certificate

Given = dict[str, Any]
"""Options that JSON can hold; `served` converts them to arguments of `Instance.serve`."""
PLAIN: Final[Given] = {"allow_unencrypted": True}
_DAYS: Final = 30


def certified(folder: Path, names: Sequence[str]) -> dict[str, Given]:
    """A certificate for each instance, in files of the folder, all signed by one authority."""
    begins = datetime.now(UTC) - timedelta(days=1)
    validity = Validity(begins, begins + timedelta(days=_DAYS))
    authority = make_authority("Test", validity)
    trusted = folder / "authority.pem"
    trusted.write_bytes(authority.certificate)
    given: dict[str, Given] = {}
    for name in names:
        made = make_certificate([name], validity, authority=authority)
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
        given[name] = {
            "certificate": str(certificate),
            "key": str(key),
            "authority": str(trusted),
            "names": [*names],
        }
    return given


def options(folder: Path, names: Sequence[str], *, is_encrypted: bool) -> dict[str, Given]:
    """The options of each instance."""
    return certified(folder, names) if is_encrypted else dict.fromkeys(names, PLAIN)


def served(given: Given) -> dict[str, Any]:
    """The arguments of `Instance.serve`."""
    if given == PLAIN:
        return {"allow_unencrypted": True}
    return {
        "trust": Trust(
            certificate=Path(given["certificate"]),
            key=Path(given["key"]),
            authority=Path(given["authority"]),
            names=given["names"],
        )
    }
