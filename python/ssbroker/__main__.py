"""Entry point of `python -m ssbroker`."""

from __future__ import annotations

import sys

from ssbroker.cli import main

sys.exit(main())
