"""Users, master keys, certificates, bindings and permissions are created, altered, rejected and shown."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.exceptions import BrokerError, DdlError, DdlWarning, StorageError
from ssbroker.security.certificates import Validity, fingerprint, key_to_pem, make_certificate
from ssbroker.store.database_file import DatabaseFile
from ssbroker.store.objects import load
from ssbroker.store.schema import DATABASE
from ssbroker.store.security import OWNER, PUBLIC
from ssbroker.store.sqlite import Connection
from tests.broker.conftest import START, TARGET
from tests.internals import instance_of
from tests.security.shared_certificates import BEGINS, ENDS, certified

PASSWORD = "long and secret"


@pytest.fixture
def keyed(sales: Database) -> Database:
    """Sales with a user and a master key."""
    sales.create_user("Ann")
    sales.create_master_key(PASSWORD)
    return sales


def rows(database: Database, view: str, *columns: str) -> list[Any]:
    """Returns some columns of a view; one column as plain values."""
    table = instance_of(database).view(view, database.name).select([*columns]).to_pylist()
    return [next(iter(row.values())) if len(columns) == 1 else tuple(row.values()) for row in table]


def error_number(call: Callable[[], object]) -> int | None:
    """Returns the error number of a rejected call."""
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value.number


def import_certificate(instance: Instance, file: Path) -> None:
    """Imports the certificate of the shop's owner into Stock."""
    with pytest.warns(DdlWarning, match=r"CREATE USER \[Shop\]: skipped FOR LOGIN"):
        instance.execute(
            f"""
            USE Stock
            CREATE USER Shop FOR LOGIN shop
            CREATE CERTIFICATE ShopCertificate AUTHORIZATION Shop FROM FILE = N'{file}' ACTIVE FOR BEGIN_DIALOG = OFF
            CREATE REMOTE SERVICE BINDING B AUTHORIZATION dbo TO SERVICE N'//Shop' WITH USER = Shop, ANONYMOUS = ON;
            """
        )


def test_ddl_creates_all_objects_of_a_secured_service(instance: Instance, sales: Database, tmp_path: Path) -> None:
    """The certificate is copied to the other side in a file."""
    file = tmp_path / "shop.cer"
    instance.execute(
        f"""
        CREATE MASTER KEY ENCRYPTION BY PASSWORD = N'{PASSWORD}';
        CREATE USER Shop WITHOUT LOGIN; CREATE USER [Stock's owner] WITHOUT LOGIN
        CREATE CERTIFICATE ShopCertificate AUTHORIZATION Shop
            WITH SUBJECT = N'shop.example.com', START_DATE = '11/20/2026', EXPIRY_DATE = '2031-01-01' ACTIVE FOR BEGIN_DIALOG = ON;
        BACKUP CERTIFICATE ShopCertificate TO FILE = N'{file}'
            WITH PRIVATE KEY (FILE = N'{file}.key', ENCRYPTION BY PASSWORD = N'on the way');
        CREATE QUEUE Q
        CREATE SERVICE [//Other] AUTHORIZATION Shop ON QUEUE Q ([DEFAULT]);
        ALTER AUTHORIZATION ON SERVICE::[//Shop] TO Shop
        REVOKE SEND ON SERVICE::[//Orders] FROM public CASCADE;
        GRANT SEND ON SERVICE::[//Orders] TO Shop, [Stock's owner] WITH GRANT OPTION
        DENY SEND ON SERVICE::[//Shop] TO [Stock's owner]
        CREATE DATABASE Stock
        """
    )
    import_certificate(instance, file)
    stock = instance.database("Stock")
    ids = dict(rows(sales, "sys.database_principals", "name", "principal_id"))
    assert list(ids) == ["public", "dbo", "Shop", "Stock's owner"]
    services = dict(rows(sales, "sys.services", "name", "service_id"))
    assert rows(sales, "sys.services", "name", "principal_id") == [
        ("//Orders", 1),
        ("//Shop", ids["Shop"]),
        ("//Other", ids["Shop"]),
    ]
    permissions = rows(sales, "sys.database_permissions", "major_id", "grantee_principal_id", "state_desc")
    assert sorted(permissions) == sorted(
        [
            (services["//Orders"], ids["Shop"], "GRANT"),
            (services["//Orders"], ids["Stock's owner"], "GRANT"),
            (services["//Shop"], 0, "GRANT"),
            (services["//Shop"], ids["Stock's owner"], "DENY"),
            (services["//Other"], 0, "GRANT"),
        ]
    )
    created, imported = (
        instance.view("sys.certificates", name).drop_columns(["database", "principal_id"]).to_pylist()[0]
        for name in ("Sales", "Stock")
    )
    assert created["subject"] == created["issuer_name"] == "CN=shop.example.com"
    assert (created["start_date"], created["expiry_date"]) == (
        datetime(2026, 11, 20, tzinfo=UTC),
        datetime(2031, 1, 1, tzinfo=UTC),
    )
    assert (created["pvt_key_encryption_type_desc"], created["key_length"]) == ("ENCRYPTED_BY_MASTER_KEY", 2048)
    assert (imported["pvt_key_encryption_type_desc"], imported["is_active_for_begin_dialog"]) == (
        "NO_PRIVATE_KEY",
        False,
    )
    assert created["thumbprint"] == imported["thumbprint"]
    assert rows(stock, "sys.remote_service_bindings", "name", "remote_service_name", "is_anonymous_on") == [
        ("B", "//Shop", True)
    ]
    assert fingerprint(stock.export_certificate("ShopCertificate")) == fingerprint(file.read_bytes())
    instance.execute(
        f"""
        USE Stock
        CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'another one'
        ALTER CERTIFICATE ShopCertificate WITH PRIVATE KEY (FILE = '{file}.key', DECRYPTION BY PASSWORD = 'on the way');
        ALTER CERTIFICATE ShopCertificate WITH ACTIVE FOR BEGIN_DIALOG = ON
        ALTER REMOTE SERVICE BINDING B WITH ANONYMOUS = OFF
        """
    )
    assert rows(stock, "sys.certificates", "pvt_key_encryption_type", "is_active_for_begin_dialog") == [("MK", True)]
    assert rows(stock, "sys.remote_service_bindings", "is_anonymous_on") == [False]
    instance.execute(
        "USE Stock; DROP REMOTE SERVICE BINDING B; ALTER CERTIFICATE ShopCertificate REMOVE PRIVATE KEY; DROP MASTER KEY; "
        "DROP CERTIFICATE ShopCertificate; DROP USER Shop; DROP USER IF EXISTS Shop"
    )
    assert rows(stock, "sys.database_principals", "name") == ["public", "dbo"]


def test_methods_equal_statements(keyed: Database) -> None:
    created = certified("Ann")
    encrypted = key_to_pem(created.key, password="on the way")
    keyed.create_certificate(
        "C", certificate=created.certificate, private_key=encrypted, password="on the way", owner="Ann"
    )
    keyed.set_service_owner(TARGET, "Ann")
    keyed.deny_send(TARGET, "public")
    keyed.create_user("Bob")
    keyed.create_remote_service_binding("B", service="//Far", user="Bob")
    keyed.alter_remote_service_binding("B", user="Ann", anonymous=True)
    keyed.alter_certificate("C", active=False)
    keyed.drop_user("Bob")
    assert rows(keyed, "sys.certificates", "name", "is_active_for_begin_dialog") == [("C", False)]
    assert rows(keyed, "sys.remote_service_bindings", "is_anonymous_on") == [True]
    keyed.drop_remote_service_binding("B")
    keyed.drop_certificate("C")
    keyed.drop_master_key()
    keyed.set_service_owner(TARGET, "dbo")
    keyed.drop_user("Ann")
    assert rows(keyed, "sys.database_principals", "name") == ["public", "dbo"]


def test_a_rejected_call_gives_a_reason_and_changes_nothing(keyed: Database) -> None:
    created, other = certified("Ann"), certified("Bob")
    keyed.create_certificate("C", certificate=created.certificate, private_key=created.key, owner="Ann")
    keyed.create_remote_service_binding("B", service="//Far", user="Ann")
    version = database_context(keyed).objects().version
    weak = make_certificate(["Weak"], Validity(BEGINS, ENDS)).certificate
    calls: list[tuple[Callable[[], object], int | None]] = [
        (lambda: keyed.create_user("Ann"), 15023),
        (lambda: keyed.create_user("public"), 15023),
        (lambda: keyed.create_user(""), 1038),
        (lambda: keyed.drop_user("Ann"), 15138),
        (lambda: keyed.drop_user("dbo"), 15150),
        (lambda: keyed.drop_user("Nobody"), 15151),
        (lambda: keyed.create_master_key("another"), 15578),
        (lambda: keyed.open_master_key("guessed"), 15313),
        (lambda: keyed.open_master_key(""), 15118),
        (keyed.drop_master_key, 15580),
        (lambda: keyed.create_certificate("C", certificate=other.certificate), 15232),
        (lambda: keyed.create_certificate("D", certificate=created.certificate), 15232),
        (lambda: keyed.create_certificate("D", certificate=b"none"), 15208),
        (lambda: keyed.create_certificate("D", certificate=weak), 15208),
        (lambda: keyed.create_certificate("D", certificate=other.certificate, private_key=created.key), 15208),
        (lambda: keyed.create_certificate("D", certificate=other.certificate, owner="Nobody"), 15151),
        (lambda: keyed.create_certificate("D", certificate=other.certificate, owner="public"), None),
        (lambda: keyed.create_certificate("D", begins=START, ends=START), 15297),
        (lambda: keyed.alter_certificate("D", active=True), 15151),
        (lambda: keyed.drop_certificate("D"), 15151),
        (lambda: keyed.create_remote_service_binding("E", service="//Far", user="Ann"), 9619),
        (lambda: keyed.create_remote_service_binding("E", service="", user="Ann"), 8412),
        (lambda: keyed.create_remote_service_binding("E", service="//Else", user="dbo"), None),
        (lambda: keyed.create_remote_service_binding("E", service="//Else", user="Nobody"), 15151),
        (lambda: keyed.drop_remote_service_binding("E"), 15151),
        (lambda: keyed.grant_send("//Nowhere", "Ann"), 15151),
        (lambda: keyed.grant_send(TARGET, "Nobody"), 15151),
        (lambda: keyed.deny_send(TARGET, "dbo"), 15151),
        (lambda: keyed.set_service_owner(TARGET, "public"), None),
    ]
    assert [error_number(call) for call, _ in calls] == [number for _, number in calls]
    assert database_context(keyed).objects().version == version


def test_a_private_key_requires_an_open_master_key(sales: Database) -> None:
    created = certified("Ann")
    for _ in range(2):
        assert (
            error_number(
                lambda: sales.create_certificate("C", certificate=created.certificate, private_key=created.key)
            )
            == 15581
        )
        if database_context(sales).objects().security.master_key is None:
            sales.create_master_key(PASSWORD)
            instance_of(sales).execute("ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY")
    with pytest.raises(DdlError, match="15581"):
        instance_of(sales).execute("ALTER MASTER KEY ADD ENCRYPTION BY SERVICE MASTER KEY")
    instance_of(sales).execute(
        f"OPEN MASTER KEY DECRYPTION BY PASSWORD = '{PASSWORD}'; ALTER MASTER KEY ADD ENCRYPTION BY SERVICE MASTER KEY"
    )
    sales.create_certificate("C", certificate=created.certificate, private_key=created.key)


def test_private_keys_are_encrypted_in_the_file(keyed: Database, instance: Instance) -> None:
    """The service master key of another instance does not decrypt them; the password does, once."""
    created = certified("Ann")
    keyed.create_certificate("C", certificate=created.certificate, private_key=created.key, owner="Ann")
    security = database_context(keyed).objects().security
    clear = instance_context(instance).key_encryption.private_key(security, security.certificates["C"])
    assert clear is not None
    database_context(keyed).file.checkpoint()
    held = keyed.path.read_bytes()
    for secret in (
        clear,
        clear[-300:-200],
        PASSWORD.encode(),
        instance_context(instance).key_encryption.master_key(security),
    ):
        assert secret is not None
        assert secret not in held


@pytest.mark.rule("I8")
def test_in_another_instance_the_password_opens_the_keys_once(keyed: Database, tmp_path: Path) -> None:
    """Certificates are in the file; 15313 for a wrong password."""
    created = certified("Ann")
    keyed.create_certificate("C", certificate=created.certificate, private_key=created.key, owner="Ann")
    path = keyed.path
    instance_of(keyed).detach_database("Sales")
    with Instance.create(tmp_path / "other", name="other", background=False) as other:
        database = other.attach_database("Sales", path)
        security = database_context(database).objects().security
        assert not instance_context(other).key_encryption.certificate(security, security.certificates["C"]).has_key
        database.open_master_key(PASSWORD)
    with Instance.open(tmp_path / "other", background=False) as again:
        security = database_context(again.database("Sales")).objects().security
        assert instance_context(again).key_encryption.certificate(security, security.certificates["C"]).has_key


@pytest.mark.skipif(os.name == "nt", reason="files have no such modes there")
def test_the_service_master_key_is_private(keyed: Database) -> None:
    file = instance_of(keyed).folder / "service_master.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in instance_of(keyed).folder.iterdir() if each.name.startswith(".")] == []


def test_a_damaged_service_master_key_is_reported(keyed: Database) -> None:
    (instance_of(keyed).folder / "service_master.key").write_bytes(b"short")
    with pytest.raises(StorageError, match="expected a key of 32 bytes, got 5 bytes; restore the file from a backup"):
        keyed.create_certificate("C", subject="shop")


def test_invalid_files_are_rejected(instance: Instance, keyed: Database, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(bytes(1 << 17))
    (tmp_path / "there").write_bytes(b"")
    for statement, text in (
        (f"CREATE CERTIFICATE C FROM FILE = '{tmp_path / 'missing'}'", "cannot be read"),
        (
            f"CREATE CERTIFICATE C FROM FILE = '{tmp_path / 'long'}'",
            "is not a certificate or a private key, because it has more than 65536 bytes",
        ),
        (f"CREATE CERTIFICATE C FROM FILE = '{tmp_path / 'there'}'", "expected a certificate in PEM or DER"),
        ("CREATE CERTIFICATE C FROM FILE = 'a\0b'", "15208: a\0b: cannot be read: embedded null byte"),
        ("CREATE DATABASE Late ON (FILENAME = 'a\0b') FOR ATTACH", "is not a valid file name: .*embedded null"),
        ("CREATE CERTIFICATE C WITH SUBJECT = 's', EXPIRY_DATE = 'soon'", "'soon' is not a valid timestamp"),
        ("CREATE CERTIFICATE C WITH SUBJECT = 's', START_DATE = '1900-01-01'", "15297: .* 1950 or later"),
        ("CREATE CERTIFICATE C WITH SUBJECT = 's', START_DATE = '9999-06-01'", "15297: .* ends after the year 9999"),
        (f"CREATE CERTIFICATE C WITH SUBJECT = '{'s' * 65}'", "15297: .* expected 1 to 64 characters"),
        ("CREATE CERTIFICATE C WITH SUBJECT = 'CN='", "15297: .* expected 1 to 64 characters"),
    ):
        with pytest.raises(DdlError, match=text):
            instance.execute(statement)
    instance.execute("CREATE CERTIFICATE C WITH SUBJECT = 'CN = shop'")
    with pytest.raises(DdlError, match="15240"):
        instance.execute(f"BACKUP CERTIFICATE C TO FILE = '{tmp_path / 'there'}'")
    with pytest.raises(DdlError, match="ENCRYPTION BY PASSWORD"):
        instance.execute(f"BACKUP CERTIFICATE C TO FILE = 'x' WITH PRIVATE KEY (FILE = '{tmp_path / 'key'}')")
    assert rows(keyed, "sys.certificates", "subject") == ["CN=shop"]


def test_a_backup_that_fails_leaves_no_copy_of_the_key(instance: Instance, keyed: Database, tmp_path: Path) -> None:
    keyed.create_certificate("C")
    (tmp_path / "there").write_bytes(b"")
    key = tmp_path / "key"
    with pytest.raises(DdlError, match="15240"):
        instance.execute(
            f"BACKUP CERTIFICATE C TO FILE = '{tmp_path / 'there'}' WITH PRIVATE KEY (FILE = '{key}', ENCRYPTION BY PASSWORD = 'p')"
        )
    assert not key.exists()
    with pytest.raises(DdlError, match="15240"):
        instance.execute(f"BACKUP CERTIFICATE C TO FILE = '{tmp_path / 'no folder' / 'x'}'")


def test_a_failed_batch_removes_its_backups(instance: Instance, keyed: Database, tmp_path: Path) -> None:
    """Otherwise a copy of the key would remain, and the corrected script would fail (15240)."""
    keyed.create_certificate("C")
    files = [tmp_path / name for name in ("certificate", "key")]
    backup = "BACKUP CERTIFICATE C TO FILE = '{}' WITH PRIVATE KEY (FILE = '{}', ENCRYPTION BY PASSWORD = 'p');".format(
        *files
    )
    with pytest.raises(DdlError, match="15151"):
        instance.execute(backup + "DROP QUEUE Nowhere;")
    assert not any(file.exists() for file in files)
    instance.execute(backup)
    assert all(file.exists() for file in files)


def test_the_subject_of_a_certificate_may_have_any_characters(instance: Instance, keyed: Database) -> None:
    instance.execute("CREATE CERTIFICATE C WITH SUBJECT = N'Aufträge, für Ωmega'")
    assert rows(keyed, "sys.certificates", "subject") == ["CN=Aufträge\\, für Ωmega"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MASTER KEY",
        "CREATE CERTIFICATE C",
        "CREATE CERTIFICATE C WITH START_DATE = '2026-01-01'",
        "CREATE CERTIFICATE C FROM FILE = 'f' WITH PRIVATE KEY (DECRYPTION BY PASSWORD = 'p')",
        "ALTER CERTIFICATE C",
        "ALTER MASTER KEY REGENERATE WITH ENCRYPTION BY PASSWORD = 'p'",
        "CREATE REMOTE SERVICE BINDING B TO SERVICE '//A' WITH ANONYMOUS = ON",
        "CREATE REMOTE SERVICE BINDING B TO SERVICE '//A' WITH USER = u, USER = v",
        "GRANT SEND ON SERVICE::[//A] FROM public",
        "GRANT SEND ON SERVICE::[//A]",
    ],
)
def test_incomplete_statements_are_syntax_errors(instance: Instance, sales: Database, statement: str) -> None:
    with pytest.raises(DdlError) as caught:
        instance.execute(statement)
    assert caught.value.number in (102, 1039)


def test_secrets_are_not_shown(instance: Instance, keyed: Database) -> None:
    with pytest.raises(DdlError) as caught:
        instance.execute("CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'not to be seen'")
    assert "not to be seen" not in str(caught.value)
    keyed.create_certificate("C", subject="shop")
    assert repr(database_context(keyed).objects().security.certificates["C"].private_key)[2:20] not in repr(
        database_context(keyed).objects()
    )


def test_any_user_may_send_to_a_new_service(sales: Database) -> None:
    assert rows(sales, "sys.database_permissions", "grantee_principal_id", "state") == [(0, "G"), (0, "G")]
    sales.drop_service(TARGET)
    assert len(rows(sales, "sys.database_permissions", "state")) == 1


def test_any_user_may_send_to_a_service_from_version_1(tmp_path: Path) -> None:
    """Version 1 had no permissions; the service belongs to dbo."""
    path = tmp_path / "old.sqlite"
    DatabaseFile.create(path, DATABASE[:1], fill=first_version).close()
    file = DatabaseFile.open(path, DATABASE)
    with file.read() as connection:
        objects = load(connection)
    file.close()
    (service,) = objects.services.values()
    assert service.principal_id == OWNER
    assert objects.security.permissions == {(service.service_id, PUBLIC): "G"}
    assert [*objects.security.principals] == ["public", "dbo"]


def first_version(connection: Connection) -> None:
    """A database with a service, as the first version wrote it."""
    connection.execute(
        """
        INSERT INTO ssb_database (only_row, service_broker_guid, is_broker_enabled) VALUES (1, x'00', 1);
        INSERT INTO ssb_queues (queue_id, schema_name, name) VALUES (65536, 'dbo', 'Orders');
        INSERT INTO ssb_services (service_id, name, queue_id) VALUES (65536, '//Orders', 65536);
        """
    )


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MASTER KEY ENCRYPTION BY PASSWORD 'hush'",
        "CREATE MASTER KEY ENCRYPTION BY PASSWORD = hush",
        "OPEN MASTER KEY DECRYPTION BY PASSWORD = -'hush'",
        "BACKUP CERTIFICATE C TO FILE = 'f' WITH PRIVATE KEY (FILE = 'k', ENCRYPTION BY PASSWORD = [hush])",
    ],
)
def test_a_syntax_error_contains_no_password(sales: Database, statement: str) -> None:
    with pytest.raises(DdlError, match="syntax error near") as caught:
        instance_of(sales).execute(f"USE Sales; {statement}")
    assert "hush" not in str(caught.value)
