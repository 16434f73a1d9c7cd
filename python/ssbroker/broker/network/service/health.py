"""Whether an instance that is served is well (N28)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ssbroker.exceptions import SsbrokerError

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance


def problems(instance: Instance) -> dict[str, str]:
    """What is wrong. What other instances do is not: they are expected to be away now and then.

    Args:
        instance: The instance.

    Returns:
        For each thing that is not as it should be, what it is; nothing where all is well.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     problems(instance)
        {'endpoint': 'no thread of this process serves the instance'}
    """
    found: dict[str, str] = {}
    if instance.server is None or not instance.server.is_alive:
        found["endpoint"] = "no thread of this process serves the instance"
    credentials = None if instance.server is None else instance.server.credentials
    if credentials is not None and (trouble := credentials.trouble()) is not None:
        found["certificate"] = trouble
    try:
        for row in instance.view("sys.databases").to_pylist():
            if row["state_desc"] != "ONLINE":
                found[f"database {row['name']}"] = "its file is not there, or cannot be used"
        for database in instance.databases:
            database.file.try_again()  # nobody else may have a reason to write for a long time
            trouble = database.file.trouble
            if trouble is not None:
                found.setdefault(f"database {database.name}", trouble)
            if database.file.failure is not None:
                found.setdefault(f"database {database.name}", f"could not be written: {database.file.failure}")
    except SsbrokerError as error:
        found["databases"] = str(error)
    return found
