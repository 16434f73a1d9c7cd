"""Options for the instances of a fleet: certificates of one authority, or no encryption."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ssbroker.broker.network.tls import Trust
from ssbroker.security.certificates import Validity, make_authority, make_certificate

ServeOptions = dict[str, Any]
"""Options that JSON can hold; `served` converts them to arguments of `Instance.serve`."""
UNENCRYPTED: Final[ServeOptions] = {"allow_unencrypted": True}
_DAYS: Final = 30


def certificate_options(folder: Path, names: Sequence[str]) -> dict[str, ServeOptions]:
    """Creates a certificate for each instance, in files of the folder, all signed by one authority."""
    start = datetime.now(UTC) - timedelta(days=1)
    validity = Validity(start, start + timedelta(days=_DAYS))
    authority = make_authority("Test", validity)
    trusted = folder / "authority.pem"
    trusted.write_bytes(authority.certificate)
    options_by_name: dict[str, ServeOptions] = {}
    for name in names:
        made = make_certificate([name], validity, authority=authority)
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
        options_by_name[name] = {
            "certificate": str(certificate),
            "key": str(key),
            "authority": str(trusted),
            "names": [*names],
        }
    return options_by_name


def options(folder: Path, names: Sequence[str], *, is_encrypted: bool) -> dict[str, ServeOptions]:
    """Returns the options of each instance."""
    return certificate_options(folder, names) if is_encrypted else dict.fromkeys(names, UNENCRYPTED)


def serve_arguments(options_by_name: ServeOptions) -> dict[str, Any]:
    """Converts options to arguments of `Instance.serve`."""
    if options_by_name == UNENCRYPTED:
        return {"allow_unencrypted": True}
    return {
        "trust": Trust(
            certificate=Path(options_by_name["certificate"]),
            key=Path(options_by_name["key"]),
            authority=Path(options_by_name["authority"]),
            names=options_by_name["names"],
        )
    }
