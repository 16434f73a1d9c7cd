"""`ssbroker certificates`: an authority and certificates, to begin with (P24, N8)."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from ssbroker.cli.errors import writing
from ssbroker.exceptions import InputError, OptionError
from ssbroker.security.certificates import Certified, holds, may_sign, read_certificate, read_key
from ssbroker.security.issuing import Validity, make_authority, make_certificate

EXAMPLES = """[bold]Examples[/bold]

Certificates for two instances, and the authority that has signed them:

  ssbroker certificates keys/ --name shop --name stock

Later, one more of the same authority:

  ssbroker certificates keys/ --name office
"""
AUTHORITY: Final = "authority"
DAYS: Final = 365
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
        if each == AUTHORITY or not each or Path(each).name != each:
            raise OptionError(
                f"--name: expected a name that can be that of a file, and not {AUTHORITY}; got {each!r:.80}"
            )
        if _is_address(each):
            raise OptionError(
                f"--name: expected the name of an instance, which says who it is and not where; got {each}"
            )
        if _files(folder, each)[0].exists():
            raise OptionError(f"{_files(folder, each)[0]}: is there already; remove it, or choose another name")
    is_new = not _files(folder, AUTHORITY)[0].exists()
    authority = make_authority("ssbroker authority", validity) if is_new else _authority(folder)
    validity = _within(folder, validity, holds(authority.certificate)[1])
    made = {each: make_certificate([each], validity, authority=authority) for each in name}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if is_new:
        _write(folder, AUTHORITY, authority)
        typer.echo(f"{_files(folder, AUTHORITY)[0]}: the authority, which all instances believe")
    for each, certified in made.items():
        _write(folder, each, certified)
        typer.echo(f"{_files(folder, each)[0]}: for {each}, until {validity.ends:%Y-%m-%d}")


def _authority(folder: Path) -> Certified:
    """The authority of a folder."""
    certificate, key = _files(folder, AUTHORITY)
    try:
        found = Certified(certificate.read_bytes(), key.read_bytes())
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


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def _write(folder: Path, name: str, made: Certified) -> None:
    certificate, key = _files(folder, name)
    with writing(key):
        key.touch(mode=0o600)
        key.chmod(0o600)
        key.write_bytes(made.key)
        certificate.write_bytes(made.certificate)


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"
