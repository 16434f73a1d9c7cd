"""The health of an instance: what is wrong with it now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ssbroker.broker.database import database_context
from ssbroker.exceptions import SsbrokerError

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance


def problems(instance: Instance) -> dict[str, str]:
    """Returns the problems of an instance by subject. An unreachable peer is not a problem.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     problems(instance)
        {'endpoint': 'no thread of this process serves the instance'}
    """
    found: dict[str, str] = {}
    server = instance.server  # another thread may end serving
    if server is None or not server.is_alive:
        found["endpoint"] = "no thread of this process serves the instance"
    credentials = None if server is None else server.credentials
    if credentials is not None and (trouble := credentials.validity_problem()) is not None:
        found["certificate"] = trouble
    try:
        for row in instance.view("sys.databases").to_pylist():
            if row["state_desc"] != "ONLINE":
                found[f"database {row['name']}"] = "its file is missing or cannot be used"
        for database in instance.databases:
            file = database_context(database).file
            # Otherwise the failure would be reported until something is written again.
            file.retry_failed_write()
            if (read_failure := file.read_failure) is not None:
                found.setdefault(f"database {database.name}", read_failure)
            if (failure := file.failure) is not None:
                found.setdefault(f"database {database.name}", f"cannot be written: {failure}")
    except SsbrokerError as error:
        found["databases"] = str(error)
    return found
