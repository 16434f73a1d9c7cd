"""`ssbroker certificates`: an authority and certificates, to begin with (P24, N8)."""

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

from ssbroker.cli.errors import writing
from ssbroker.exceptions import InputError, OptionError
from ssbroker.security.certificates import (
    CertificateWithKey,
    Validity,
    holds,
    make_authority,
    make_certificate,
    may_sign,
    read_certificate,
    read_key,
)

EXAMPLES = """[bold]Examples[/bold]

Certificates for two instances, and the authority that has signed them:

  ssbroker certificates keys/ --name shop --name stock

Later, one more of the same authority:

  ssbroker certificates keys/ --name office
"""
AUTHORITY: Final = "authority"
DAYS: Final = 365
# What is a name of a file everywhere, and one of DNS.
_NAME: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]|\.(?=[a-z0-9_]))*", re.ASCII | re.IGNORECASE)
_EARLIER: Final = timedelta(hours=1)
"""Certificates hold from a little before now on, since not all clocks are right."""


def certificates(
    *,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where they stand; made where it is not there.")],
    name: Annotated[
        list[str], typer.Option(metavar="NAME", help="An instance that gets a certificate. May be repeated.")
    ],
    days: Annotated[int, typer.Option(min=1, max=36_500, help="For how long they hold.")] = DAYS,
) -> None:
    """Make an authority and certificates that it has signed: NAME.pem and NAME.key for each instance, and authority.pem for all.

    Where the authority is there already, it signs the new ones, and none of them holds longer than itself. Who has authority.key can make certificates that all instances believe: keep it where no instance runs.
    """
    begins = datetime.now(UTC) - _EARLIER
    validity = Validity(begins, begins + _EARLIER + timedelta(days=days))
    for each in name:
        _check_name(each)
        _refuse_taken(folder, each, "remove it, or choose another name")
    is_new = not os.path.lexists(_files(folder, AUTHORITY)[0])
    if is_new:
        _refuse_taken(
            folder, AUTHORITY, "it may be all that is left of an authority; move it away, or choose another folder"
        )
    authority = make_authority("ssbroker authority", validity) if is_new else _authority(folder)
    validity = _within(folder, validity, holds(authority.certificate)[1])
    made = {each: make_certificate([each], validity, authority=authority) for each in name}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _write_all(folder, {AUTHORITY: authority, **made} if is_new else made)
    if is_new:
        typer.echo(f"{_files(folder, AUTHORITY)[0]}: the authority, which all instances believe")
    for each in made:
        typer.echo(f"{_files(folder, each)[0]}: for {each}, until {validity.ends:%Y-%m-%d}")


def _authority(folder: Path) -> CertificateWithKey:
    """The authority of a folder."""
    certificate, key = _files(folder, AUTHORITY)
    try:
        found = CertificateWithKey(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}", value=str(error.filename)) from error
    if not may_sign(found.certificate):
        raise InputError(f"{certificate}: expected the certificate of an authority; it may sign no others")
    if read_key(found.key).public_key() != read_certificate(found.certificate).public_key():
        raise InputError(f"{key}: expected the private key of {certificate}; it is another one's")
    return found


def _within(folder: Path, validity: Validity, ends: datetime) -> Validity:
    """No certificate is believed longer than the authority that has signed it."""
    if ends <= datetime.now(UTC):
        raise InputError(
            f"{_files(folder, AUTHORITY)[0]}: the authority has ended on {ends:%Y-%m-%d}, so nobody would believe what it signs; "
            "make another one in another folder"
        )
    return Validity(validity.begins, min(validity.ends, ends))


def _check_name(name: str) -> None:
    if name.lower() == AUTHORITY or _NAME.fullmatch(name) is None:
        raise OptionError(
            f"--name: expected letters, digits, '_', '-' and single dots between them, and not {AUTHORITY}; got {name!r:.80}"
        )
    if _is_address(name):
        raise OptionError(f"--name: expected the name of an instance, which says who it is and not where; got {name}")


def _refuse_taken(folder: Path, name: str, advice: str) -> None:
    """A private key that is overwritten is lost for good; so may be one that a link leads to, which may not be there now."""
    for file in _files(folder, name):
        if os.path.lexists(file):
            raise OptionError(f"{file}: is there already; {advice}")


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def _write_all(folder: Path, made: Mapping[str, CertificateWithKey]) -> None:
    """Writes files that are not there, all of them or none."""
    written: list[Path] = []
    try:
        for name, certified in made.items():
            certificate, key = _files(folder, name)
            for file, data, mode in ((key, certified.key, 0o600), (certificate, certified.certificate, 0o644)):
                with writing(file):
                    # Exclusively, so that neither what came meanwhile is overwritten nor what a link leads to.
                    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                    written.append(file)
                    with os.fdopen(descriptor, "wb") as opened:
                        opened.write(data)
    except BaseException:
        for file in written:
            with suppress(OSError):
                file.unlink()
        raise


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"
