"""Session keys, sealing and signatures of dialogs (P21, P22, B32), on the library `cryptography`, which is imported at first use."""

from __future__ import annotations

from ssbroker.security.dialog import SIGNATURE_BYTES, TAG_BYTES, SecuredDirection
from ssbroker.security.keys import SESSION_KEY_BYTES, DirectionKeys, derived

__all__ = ["SESSION_KEY_BYTES", "SIGNATURE_BYTES", "TAG_BYTES", "DirectionKeys", "SecuredDirection", "derived"]
