"""Session keys, sealing and signatures of dialogs (P21, P22). The `cryptography` package is imported on first use."""

from __future__ import annotations

from ssbroker.security.keys import SESSION_KEY_BYTES, DirectionKeys, derive_keys
from ssbroker.security.secured_direction import SEAL_BYTES, SIGNATURE_BYTES, SecuredDirection

__all__ = ["SEAL_BYTES", "SESSION_KEY_BYTES", "SIGNATURE_BYTES", "DirectionKeys", "SecuredDirection", "derive_keys"]
