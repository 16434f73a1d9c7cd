"""A process that is forked while a thread uses a reassembler."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from tests.boundary.attempts import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

FORKS: Final = """
import os, signal, threading
import ssbroker
from ssbroker import Reassembler
from tests.reassembly.signed_messages import messages

fragments = ssbroker.fragment(messages([b"x" * 20_000] * 100), max_fragment_bytes=10)
reassembler = Reassembler()
is_over = threading.Event()

def work():
    while not is_over.is_set():
        reassembler.push(fragments)

thread = threading.Thread(target=work)
thread.start()
found = set()
for _ in range(40):
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            reassembler.pending_messages
            text = ""
        except ssbroker.exceptions.SsbrokerError as error:
            text = str(error)
        os._exit(0 if not text else 1 if "fork while no thread uses it" in text else 2)
    found.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if found - {0}:
        break
is_over.set()
thread.join()
print(sorted(found - {0}))
"""


def test_a_process_forked_while_a_thread_uses_a_reassembler_gets_an_error() -> None:
    """The thread does not exist in the process, which would wait for it forever."""
    process = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    assert process.stdout == "[1]\n"
