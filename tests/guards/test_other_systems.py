"""The package can be imported on any system: what only POSIX has is looked up where it is used."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, os, pkgutil, signal, socket, sys
import apsw, cryptography, pandas, prometheus_client, pyarrow, pyspark.sql.connect.session, pyspark.sql.streaming, rich, typer

for name in ("fcntl", "grp", "pwd", "resource", "syslog", "termios"):
    sys.modules[name] = None
for module, names in {
    os: ("O_CLOEXEC", "O_DIRECTORY", "fork", "geteuid", "getuid", "register_at_fork", "sched_getaffinity", "statvfs", "sysconf"),
    signal: ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "pthread_sigmask", "setitimer"),
    socket: ("AF_UNIX", "SO_REUSEPORT"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

count = 0
for package in ("ssbroker", "pyspark_ssbroker"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.", onerror=print):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
print(count)
"""


def test_every_module_is_imported_without_posix() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150, done.stdout
