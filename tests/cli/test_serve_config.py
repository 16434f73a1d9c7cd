"""The settings of `ssbroker serve`, from a file and from options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ssbroker import Instance
from ssbroker.cli.serve_config import Address, ConfigurationServiceSettings, ServeSettings, TlsSettings
from ssbroker.exceptions import InputError, OptionError
from tests.cli.conftest import Run

FULL = """
listen = "0.0.0.0"
addresses = ["TCP://shop.example:4022"]
dial_only = ["10.0.0.0/8", "*.example"]
http = "127.0.0.1:9422"
http_token = "token.txt"
log = "json"
log_level = "warning"
shutdown_timeout = 3

[tls]
certificate = "shop.pem"
key = "keys/shop.key"
authority = "authority.pem"
names = ["stock"]

[tls.pinned]
office = ["office.pem", "office-next.pem"]

[limits]
max_unrouted_addresses = 5
max_message_bytes = 1000

[configuration]
directory = "services.csv"
database = "Sales"
asked_by = ["Sales", "Stock"]
lifetime = 60
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "serve.toml"


def test_all_settings(file: Path) -> None:
    file.write_text(FULL)
    folder = file.parent
    (folder / "services.csv").touch()
    assert ServeSettings.read(file) == ServeSettings(
        listen=Address("0.0.0.0", 4022),
        addresses=("TCP://shop.example:4022",),
        dial_only=("10.0.0.0/8", "*.example"),
        http=Address("127.0.0.1", 9422),
        http_token=folder / "token.txt",
        log="json",
        log_level="warning",
        shutdown_timeout=3.0,
        tls=TlsSettings(
            folder / "shop.pem",
            folder / "keys" / "shop.key",
            folder / "authority.pem",
            ("stock",),
            {"office": (folder / "office.pem", folder / "office-next.pem")},
        ),
        limits={"max_unrouted_addresses": 5, "max_message_bytes": 1000},
        configuration=ConfigurationServiceSettings(folder / "services.csv", None, "Sales", ("Sales", "Stock"), 60),
    )


@pytest.mark.rule("P3")
def test_default_settings_listen_on_port_4022_of_localhost(file: Path) -> None:
    file.write_text("")
    assert ServeSettings.read(file) == ServeSettings()
    assert ServeSettings().listen == Address("127.0.0.1", 4022)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("listen = 4022", "listen: expected a non-empty string, got 4022"),
        ('listen = "host:port"', "listen: expected HOST:PORT"),
        ('listen = "host:65536"', "listen: expected HOST:PORT"),
        ('listen = "::1"', "listen: expected HOST:PORT"),
        ('listen = "4170"', "listen: expected HOST:PORT"),
        ('http = "::1"', "http: expected HOST:PORT"),
        ('log = "xml"', "log: expected 'json' or 'text', got 'xml'"),
        ('log_level = "loud"', "log_level: expected one of debug, info, warning, error, got 'loud'"),
        ("shutdown_timeout = -1", "shutdown_timeout: expected a number of seconds from 0 to 86400, got -1"),
        ("shutdown_timeout = nan", "shutdown_timeout: expected a number of seconds from 0 to 86400, got nan"),
        (f"shutdown_timeout = {'9' * 400}", "shutdown_timeout: expected a number of seconds from 0 to 86400, got 999"),
        ("shutdown_timeout = 1e300", "shutdown_timeout: expected a number of seconds from 0 to 86400, got 1e+300"),
        ("log_level = []", "log_level: expected one of debug, info, warning, error, got []"),
        ("log_level = {a = 1}", "log_level: expected one of debug, info, warning, error, got {'a': 1}"),
        ("log = {a = 1}", "log: expected 'json' or 'text', got {'a': 1}"),
        ('listen = "a..b:1"', "listen: expected HOST:PORT"),
        ('listen = "a b:1"', "listen: expected HOST:PORT"),
        ('listen = "[shop]:1"', "listen: expected HOST:PORT"),
        (f'http = "{"h" * 300}:1"', "http: expected HOST:PORT"),
        ('addresses = ["shop"]', "addresses: 'shop' is not a valid address; expected TCP://host[:port]"),
        ('dial_only = ["10.0.0.0/99"]', "dial_only: '10.0.0.0/99' is not a valid network"),
        (
            "[limits]\nmax_unrouted_addresses = 99999999",
            "limits.max_unrouted_addresses: expected an integer from 1 to 1000000, got 9",
        ),
        (f"[limits]\nmax_message_bytes = {10**30}", "limits.max_message_bytes: expected an integer from 1 to "),
        (
            f"[configuration]\nlifetime = {10**30}",
            "configuration.lifetime: expected an integer number of seconds from 1 to 2147483",
        ),
        ("allow_unencrypted = 1", "allow_unencrypted: expected true or false, got 1"),
        (
            "lissen = 1",
            "lissen: unknown setting; expected one of addresses, allow_unencrypted, configuration, dial_only, ensure, http, http_token, limits",
        ),
        ("tls = 1", "tls: expected a table, got 1"),
        ('[tls]\nkey = ""', "tls.key: expected a non-empty string, got ''"),
        ('[tls]\nkey = "a\\u0000b"', r"tls.key: expected a non-empty string, got 'a\x00b'"),
        ('[tls]\nnames = "stock"', "tls.names: expected a list of strings, got 'stock'"),
        ('[tls]\ncert = "x"', "tls.cert: unknown setting; expected one of authority, certificate, key, names, pinned"),
        ('[tls.pinned]\nstock = "x"', "tls.pinned.stock: expected a list of strings, got 'x'"),
        ("limits = 1", "limits: expected a table, got 1"),
        (
            "[limits]\nmax_unrouted_addresses = true",
            "limits.max_unrouted_addresses: expected a positive integer, got True",
        ),
        (
            "[limits]\nlearned_most = 1",
            "limits.learned_most: unknown setting; expected one of dial_burst, dials_per_second, ",
        ),
        ("[configuration]\nlifetime = 0", "configuration.lifetime: expected a positive integer, got 0"),
    ],
)
def test_invalid_setting_is_reported_with_its_name(file: Path, content: str, message: str) -> None:
    file.write_text(content)
    with pytest.raises((InputError, OptionError), match=re.escape(f"{file}: {message}")):
        ServeSettings.read(file)


def test_file_with_byte_order_mark(file: Path) -> None:
    """Notepad writes one."""
    file.write_text('log = "json"', encoding="utf-8-sig")
    assert ServeSettings.read(file) == ServeSettings(log="json")


def test_missing_or_invalid_file(file: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        ServeSettings.read(file)
    file.write_bytes(b"listen = \xff")
    with pytest.raises(InputError, match="not valid TOML"):
        ServeSettings.read(file)
    file.write_text("listen =")
    with pytest.raises(InputError, match="not valid TOML"):
        ServeSettings.read(file)


@pytest.mark.rule("P3")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:1", Address("127.0.0.1", 1)),
        ("shop.example", Address("shop.example", 4022)),
        ("[::]", Address("::", 4022)),
        ("[::1]:0", Address("::1", 0)),
    ],
)
def test_listen_address(text: str, expected: Address) -> None:
    assert Address.parse(text, name="listen", port=4022) == expected


@pytest.mark.rule("P3")
@pytest.mark.parametrize("text", ["", ":", ":4022", "host:", "host:-1", "host:4\N{SUPERSCRIPT TWO}", "a:b:1", "[]:1"])
def test_invalid_listen_address(text: Any) -> None:
    with pytest.raises(OptionError, match="expected HOST:PORT"):
        Address.parse(text, name="listen")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", ""], "--listen: expected HOST:PORT"),
        (["--http", ""], "--http: expected HOST:PORT"),
        (["--log", ""], "--log: expected 'json' or 'text', got ''"),
        (["--log-level", ""], "--log-level: expected one of debug, info, warning, error, got ''"),
        (["--name", ""], "--name: expected a non-empty string, got ''"),
        (["--address", "shop"], "--address: 'shop' is not a valid address; expected TCP://host[:port]"),
        (["--dial-only", "10.0.0.0/99"], "--dial-only: '10.0.0.0/99' is not a valid network"),
        (["--listen", "4170"], "--listen: expected HOST:PORT, such as 127.0.0.1:4022, got '4170'"),
        (["--http", "8080"], "--http: expected HOST:PORT, such as 127.0.0.1:4022, got '8080'"),
        (["--listen", "a..b:1"], "--listen: expected HOST:PORT"),
    ],
)
def test_invalid_option_is_named(run: Run, tmp_path: Path, options: list[str], message: str) -> None:
    """Empty options come from unset variables, and must not be ignored."""
    result = run("serve", tmp_path, "--allow-unencrypted", *options)
    assert result.status == 2
    assert result.err.startswith(f"ssbroker: {message}")
    assert result.err.count("\n") == 1


def test_unknown_database_is_reported_with_its_setting(run: Run, file: Path, tmp_path: Path) -> None:
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    file.write_text('[configuration]\ntable = "t"\nasked_by = ["Sales"]')
    result = run("serve", tmp_path / "shop", "--config", file, "--listen", "127.0.0.1:0", "--allow-unencrypted")
    assert result.status == 2
    assert "configuration.asked_by: the instance has no database 'Sales'" in result.err
