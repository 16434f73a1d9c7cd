"""No text of an object contains keys or passwords, because such texts end up in logs."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssbroker
from ssbroker.cli.session_keys import load_session_keys
from ssbroker.ddl.lexer import ScriptSource, batches
from ssbroker.exceptions import InputError
from ssbroker.spark.streams.options import BucketCount
from ssbroker.store.conversation_endpoints import ConversationEndpoint

_SECRET = re.compile(
    r"((far_|answer_)?session_keys?|private_key|password|by_password|by_service|\w+ed_key|key_exchange|pickled|tokens)"
)
_MAY_BE_TOLD = {
    "ssbroker.broker.network.rate_limiter._Bucket.tokens",  # a number
    "ssbroker.cli.reassemble_files.ReassembleJob.session_keys",  # a path
}


def classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(ssbroker.__path__, "ssbroker."):
        if "__main__" not in module.name:
            found = vars(importlib.import_module(module.name)).values()
            yield from (each for each in found if inspect.isclass(each) and each.__module__ == module.name)


def shown_fields(of: type) -> list[str]:
    """Returns the fields in the text of an instance."""
    if "__repr__" in vars(of) and not dataclasses.is_dataclass(of):
        return []
    names = (
        [each.name for each in dataclasses.fields(of) if each.repr]
        if dataclasses.is_dataclass(of)
        else list(getattr(of, "_fields", ()))
    )
    return [f"{of.__module__}.{of.__name__}.{name}" for name in names]


def test_no_class_shows_a_field_named_like_a_secret() -> None:
    found = {name for each in classes() for name in shown_fields(each) if _SECRET.fullmatch(name.rpartition(".")[2])}
    assert found - _MAY_BE_TOLD == set()


def test_objects_with_keys_do_not_show_them() -> None:
    """A row of an endpoint, a bucket key, and the tokens of a statement with a password."""
    key = bytes(range(65, 91))
    values = [key if name.endswith("session_key") else bytes(16) for name in ConversationEndpoint._fields]
    row = ConversationEndpoint._make(values)
    assert key.decode() not in repr(row)
    assert key.decode() not in repr(BucketCount(count=2, key=key))
    (batch,) = batches(ScriptSource(f"CREATE MASTER KEY ENCRYPTION BY PASSWORD = '{key.decode()}'", None))
    assert key.decode() not in repr(batch)


@pytest.mark.parametrize("name", ["session_key", "by_password"])
def test_the_check_detects_a_shown_field(name: str) -> None:
    made = dataclasses.make_dataclass("Made", [(name, bytes)])
    assert shown_fields(made)[0].endswith(f".Made.{name}")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("keys.csv", "conversation_id,session_key\n{id},t0psecret\n"),
        ("keys.csv", "conversation_id,session_key\n{id},00,t0psecret\n"),
        ("keys.json", '[{{"conversation_id": "{id}", "session_key": "t0psecret"}}]'),
        ("keys.jsonl", '{{"conversation_id": "{id}", "session_key": "t0psecret"}}'),
        ("keys.jsonl", '{{"conversation_id": "{id}", "session_key": t0psecret'),
    ],
)
def test_the_error_for_an_invalid_key_file_hides_the_key(tmp_path: Path, file: str, content: str) -> None:
    """It may be the correct key in another encoding, such as base64."""
    (tmp_path / file).write_text(content.format(id=uuid.UUID(int=1)))
    with pytest.raises(InputError, match=file) as caught:
        load_session_keys(tmp_path / file)
    assert "t0psecret" not in str(caught.value)
    assert "t0psecret" not in str(caught.value.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("file", ["folder.csv", "folder.csv/keys.csv", "none/keys.jsonl", f"{'x' * 300}.csv"])
def test_an_unreachable_key_file_is_reported_as_such(tmp_path: Path, file: str) -> None:
    """The system's message contains nothing of the content."""
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"Is a directory|no such file|File name too long"):
        load_session_keys(tmp_path / file)


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_an_empty_key_file_is_reported_as_such(tmp_path: Path, ending: str) -> None:
    """It contains nothing secret."""
    file = tmp_path / f"keys.{ending}"
    file.touch()
    with pytest.raises(InputError, match="is empty"):
        load_session_keys(file)
