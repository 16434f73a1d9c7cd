"""`ssbroker certificates`: creates an authority, and certificates that it signs."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from ssbroker._files import create_file
from ssbroker.cli.errors import writing
from ssbroker.cli.options import as_options
from ssbroker.exceptions import InputError, OptionError
from ssbroker.security.certificates import (
    CertificateWithKey,
    Validity,
    can_sign,
    make_authority,
    make_certificate,
    read_certificate,
    read_key,
    validity_period,
)

EXAMPLES = """Examples:

Create an authority and certificates for two instances:

  ssbroker certificates keys/ --name shop --name stock

Add a certificate of the same authority:

  ssbroker certificates keys/ --name office
"""
AUTHORITY: Final = "authority"
DEFAULT_DAYS: Final = 365
# Matches names that are valid as a file name on every system, and as a DNS name.
_NAME_PATTERN: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]|\.(?=[a-z0-9_]))*", re.ASCII | re.IGNORECASE)
_CLOCK_TOLERANCE: Final = timedelta(hours=1)
"""Certificates are valid from this long before now, because clocks differ."""


def certificates(
    *,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Output folder; created if missing.")],
    name: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Name of an instance to create a certificate for. Can be repeated."),
    ],
    days: Annotated[int, typer.Option(metavar="DAYS", min=1, max=36_500, help="Validity in days.")] = DEFAULT_DAYS,
) -> None:
    """Create a certificate authority, and certificates signed by it for instances.

    Writes NAME.pem and NAME.key for each instance and, for a new authority, authority.pem and authority.key. An existing authority in the
    folder signs the new certificates, which expire no later than its own.

    Anyone who has authority.key can create certificates that all instances trust: keep it away from the machines that run instances.
    """
    now = datetime.now(UTC)
    validity = Validity(now - _CLOCK_TOLERANCE, now + timedelta(days=days))
    for each in name:
        _check_name(each)
        _refuse_existing(folder, each, "remove it, or choose another name")
    is_new = not os.path.lexists(_certificate_and_key(folder, AUTHORITY)[0])
    if is_new:
        _refuse_existing(
            folder, AUTHORITY, "it may be part of an authority; move it elsewhere, or choose another folder"
        )
    authority = make_authority("ssbroker authority", validity) if is_new else _load_authority(folder)
    validity = _limit_to_authority(folder, validity, validity_period(authority.certificate)[1])
    with as_options(name="--name"):
        made = {each: make_certificate([each], validity, authority=authority) for each in name}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _write_all(folder, {AUTHORITY: authority, **made} if is_new else made)
    if is_new:
        typer.echo(
            f"{_certificate_and_key(folder, AUTHORITY)[0]}: certificate of the authority, which all instances must trust"
        )
    for each in made:
        typer.echo(
            f"{_certificate_and_key(folder, each)[0]}: certificate of {each}, valid until {validity.not_after:%Y-%m-%d}"
        )


def _load_authority(folder: Path) -> CertificateWithKey:
    certificate, key = _certificate_and_key(folder, AUTHORITY)
    try:
        found = CertificateWithKey(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}", value=str(error.filename)) from error
    if not can_sign(found.certificate):
        raise InputError(
            f"{certificate}: not the certificate of an authority, because it cannot sign other certificates; "
            "restore the file, or create an authority in another folder"
        )
    if read_key(found.key).public_key() != read_certificate(found.certificate).public_key():
        raise InputError(
            f"{key}: not the private key of {certificate}; restore the file, or create an authority in another folder"
        )
    return found


def _limit_to_authority(folder: Path, validity: Validity, ends: datetime) -> Validity:
    """Limits the validity to that of the authority."""
    if ends <= datetime.now(UTC):
        raise InputError(
            f"{_certificate_and_key(folder, AUTHORITY)[0]}: the authority expired on {ends:%Y-%m-%d}; "
            "create a new one in another folder"
        )
    return Validity(validity.not_before, min(validity.not_after, ends))


def _check_name(name: str) -> None:
    if name.lower() == AUTHORITY or _NAME_PATTERN.fullmatch(name) is None:
        raise OptionError(
            f"--name: {name!r:.80} is not a valid name; expected letters, digits, '_', '-' and single dots, and not {AUTHORITY!r}"
        )
    if _is_ip_address(name):
        raise OptionError(f"--name: {name} is an IP address; expected the name of an instance")


def _refuse_existing(folder: Path, name: str, advice: str) -> None:
    """Raises an error if a file of `name`, even a dangling link, exists, because an overwritten private key would be lost."""
    for file in _certificate_and_key(folder, name):
        if os.path.lexists(file):
            raise OptionError(f"{file}: the file already exists; {advice}")


def _is_ip_address(name: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def _write_all(folder: Path, made: Mapping[str, CertificateWithKey]) -> None:
    """Creates all files, or none after an error."""
    written: list[Path] = []
    try:
        for name, pair in made.items():
            certificate, key = _certificate_and_key(folder, name)
            for file, data, mode in ((key, pair.key, 0o600), (certificate, pair.certificate, 0o644)):
                with writing(file):
                    create_file(file, data, mode=mode)
                written.append(file)
    except BaseException:
        for file in written:
            with suppress(OSError):
                file.unlink()
        raise


def _certificate_and_key(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"
