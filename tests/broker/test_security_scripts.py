"""Statements on permissions, owners and certificates in scripts of real servers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError, DdlError, DdlWarning
from ssbroker.security.certificates import Validity, key_to_der, make_dialog_certificate, to_der
from tests.broker.conftest import TARGET
from tests.internals import instance_of

SERVICE = f"SERVICE::[{TARGET}]"


@pytest.fixture
def keyed(sales: Database) -> Database:
    """Sales with a user, a master key and a certificate."""
    sales.create_user("Ann")
    sales.create_master_key("long and secret")
    return sales


def granted(database: Database) -> dict[str, str]:
    """Returns the permission to send to the service, by user."""
    names = {row["principal_id"]: row["name"] for row in rows(database, "sys.database_principals")}
    number = database_context(database).objects().services[TARGET].service_id
    permissions = rows(database, "sys.database_permissions")
    return {names[row["grantee_principal_id"]]: row["state_desc"] for row in permissions if row["major_id"] == number}


def rows(database: Database, view: str) -> list[dict[str, Any]]:
    """Returns the rows of a view."""
    found: list[dict[str, Any]] = instance_of(database).view(view, database.name).to_pylist()
    return found


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"DENY SEND ON {SERVICE} TO PUBLIC", {"public": "DENY"}),
        (f"DENY SEND ON {SERVICE} TO [Public], Ann CASCADE AS DBO", {"public": "DENY", "Ann": "DENY"}),
        (f"GRANT SEND ON {SERVICE} TO Ann WITH GRANT OPTION AS dbo;", {"public": "GRANT", "Ann": "GRANT"}),
        (f"REVOKE SEND ON {SERVICE} TO PUBLIC CASCADE AS dbo", {}),
        (f"REVOKE CONTROL ON {SERVICE} FROM PUBLIC GRANT CONTROL ON {SERVICE} TO Ann", {"Ann": "GRANT"}),
        (f"DENY CONTROL ON {SERVICE} TO PUBLIC", {"public": "DENY"}),
        (f"GRANT SEND ON {SERVICE} TO Ann; DENY CONTROL, SEND ON {SERVICE} TO Ann", {"public": "GRANT", "Ann": "DENY"}),
    ],
)
def test_permissions_on_a_service_are_read_in_every_form(
    instance: Instance, keyed: Database, script: str, expected: dict[str, str]
) -> None:
    """PUBLIC in capitals, CONTROL, lists, and AS."""
    instance.execute(script)
    assert granted(keyed) == expected


@pytest.mark.parametrize("verb", ["GRANT CONTROL ON {} TO Ann", "REVOKE CONTROL ON {} FROM Ann"])
def test_control_does_not_revoke_a_denial(instance: Instance, keyed: Database, verb: str) -> None:
    """The denial may have been of SEND, which REVOKE CONTROL does not affect."""
    keyed.deny_send(TARGET, "Ann")
    with pytest.warns(DdlWarning, match=r"SEND remains denied to Ann: CONTROL does not lift a denial; use REVOKE SEND"):
        instance.execute(verb.format(SERVICE))
    assert granted(keyed)["Ann"] == "DENY"
    instance.execute(f"GRANT SEND, CONTROL ON {SERVICE} TO Ann")
    assert granted(keyed)["Ann"] == "GRANT"


def test_other_permissions_in_a_list_are_reported(instance: Instance, keyed: Database) -> None:
    """SEND in a list is used; a list without it has no effect."""
    with pytest.warns(DdlWarning, match=r"skipped VIEW DEFINITION, TAKE OWNERSHIP"):
        instance.execute(f"DENY VIEW DEFINITION, SEND, TAKE OWNERSHIP ON {SERVICE} TO Ann")
    assert granted(keyed)["Ann"] == "DENY"
    with pytest.warns(DdlWarning, match=r"^skipped 1 statement not about Service Broker: 1 GRANT ON SERVICE$"):
        instance.execute(f"GRANT ALTER ON {SERVICE} TO Ann GRANT SEND ON {SERVICE} TO Ann")
    assert granted(keyed)["Ann"] == "GRANT"


def test_permissions_of_roles_are_reported(instance: Instance, keyed: Database) -> None:
    with pytest.warns(DdlWarning, match=r"DENY SEND \[.*\]: skipped guest: roles and guest are not supported"):
        instance.execute(f"DENY SEND ON {SERVICE} TO guest, Ann")
    assert granted(keyed)["Ann"] == "DENY"


def test_no_user_can_be_named_public(keyed: Database) -> None:
    """A grant to PUBLIC would be one to that user alone."""
    with pytest.raises(BrokerError, match=r"15023: the user 'public' already exists"):
        keyed.create_user("Public")


@pytest.mark.parametrize("text", ["20301031", "2030-10-31", "10/31/2030", "20301031 00:00", "10/31/2030 00:00:00"])
def test_a_certificate_ends_at_the_given_date(instance: Instance, keyed: Database, text: str) -> None:
    """The date formats that SQL Server reads in every language, and the US format."""
    instance.execute(f"CREATE CERTIFICATE C WITH SUBJECT = 'shop', EXPIRY_DATE = '{text}'")
    assert rows(keyed, "sys.certificates")[0]["expiry_date"] == datetime(2030, 10, 31, tzinfo=UTC)


@pytest.mark.parametrize("text", ["20301332", "2030103", "203010311", "", "31/31/2030"])
def test_an_invalid_date_is_rejected(instance: Instance, keyed: Database, text: str) -> None:
    """Like any other text."""
    with pytest.raises(DdlError, match=r"error 241: .* is not a valid timestamp") as caught:
        instance.execute(f"CREATE CERTIFICATE C WITH SUBJECT = 'shop', EXPIRY_DATE = '{text}'")
    assert caught.value.number == 241
    assert rows(keyed, "sys.certificates") == []


def test_the_owner_of_a_certificate_can_be_changed(instance: Instance, keyed: Database) -> None:
    """As for a service; otherwise dialogs would find no certificate."""
    keyed.create_certificate("C", subject="shop")
    instance.execute("ALTER AUTHORIZATION ON CERTIFICATE::[C] TO Ann")
    ann = database_context(keyed).objects().security.principals["Ann"].principal_id
    assert rows(keyed, "sys.certificates")[0]["principal_id"] == ann
    with pytest.raises(DdlError, match=r"error 15151: the certificate 'D' does not exist"):
        instance.execute("ALTER AUTHORIZATION ON CERTIFICATE::D TO Ann")
    with pytest.raises(DdlError, match=r"the certificate 'C' cannot be owned by public; specify another user"):
        instance.execute("ALTER AUTHORIZATION ON CERTIFICATE::C TO PUBLIC")


def test_an_invalid_password_is_rejected(instance: Instance, keyed: Database, tmp_path: Path) -> None:
    """OpenSSL accepts 1,023 bytes; a longer one is rejected."""
    keyed.create_certificate("C", subject="shop")
    for password, number in (("é" * 512, 15118), ("x" * 1024, 15118), ("x" * 1023, None)):
        script = f"""
            BACKUP CERTIFICATE C TO FILE = '{tmp_path}/c.cer'
            WITH PRIVATE KEY (FILE = '{tmp_path}/c.key', ENCRYPTION BY PASSWORD = '{password}')
            """
        if number is None:
            instance.execute(script)
        else:
            with pytest.raises(DdlError, match=r"expected at most 1023 bytes in UTF-8") as caught:
                instance.execute(script)
            assert caught.value.number == number
            assert not list(tmp_path.glob("c.*"))
    assert len(list(tmp_path.glob("c.*"))) == 2


def test_a_certificate_is_read_from_binary_constants(instance: Instance, keyed: Database, tmp_path: Path) -> None:
    begins = datetime(2026, 11, 20, tzinfo=UTC)
    made = make_dialog_certificate("C", Validity(begins, begins + timedelta(days=9)))
    der, key = to_der(made.certificate).hex(), key_to_der(made.key, password=None).hex()
    instance.execute(f"CREATE CERTIFICATE A FROM BINARY = 0x{der} WITH PRIVATE KEY (BINARY = 0x{key})")
    instance.execute(
        f"BACKUP CERTIFICATE A TO FILE = '{tmp_path / 'a'}' WITH PRIVATE KEY (FILE = '{tmp_path / 'k'}', ENCRYPTION BY PASSWORD = 'p')"
    )
    assert (tmp_path / "a").read_bytes() == made.certificate
    with pytest.raises(
        DdlError, match="error 15208: the certificate 'B': expected a certificate in PEM or DER, got 3 bytes"
    ):
        instance.execute("CREATE CERTIFICATE B FROM BINARY = 0x308201")


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (
            "FROM ASSEMBLY a",
            "not executed: certificates from an assembly are not supported; use FROM FILE or FROM BINARY",
        ),
        (
            "FROM EXECUTABLE FILE = 'c.dll'",
            "not executed: certificates from an executable file are not supported; use FROM",
        ),
        (
            "ENCRYPTION BY PASSWORD = 'p' WITH SUBJECT = 's'",
            "skipped the private key: keys that a password encrypts are not supported",
        ),
    ],
)
def test_what_an_instance_cannot_do_with_a_certificate_is_reported(
    instance: Instance, keyed: Database, rest: str, text: str
) -> None:
    with pytest.warns(DdlWarning, match=re.escape(text)):
        instance.execute(f"CREATE CERTIFICATE C {rest}")
    names = instance.view("sys.certificates", "Sales")["name"].to_pylist()
    assert ("C" in names) == text.startswith("skipped")
