"""Begins the logins of a client: draws nonces, reads the clock and the files of tokens."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from ottla.protocol.sasl import ClientExchange, LoginRefused
from ottla.security.client_login import ClientLogin


def begin_login(login: ClientLogin) -> Callable[[], ClientExchange]:
    """A function that begins a new exchange at each call. It raises LoginRefused if a token's file can't be read."""
    return lambda: login.exchange(secrets.token_hex, time.time, _read)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoginRefused(f"the file {path} of the token can't be read: {type(error).__name__}") from error
