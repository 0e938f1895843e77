"""UUIDs as Kafka writes them: 22 characters of URL-safe base64, without padding. Pure.

Topic ids, cluster ids and directory ids have this form in files, in tools and in the metadata store. Source: Kafka's
Uuid (toString, fromString).
"""

from __future__ import annotations

import base64
from functools import lru_cache
from uuid import UUID


def uuid_text(value: UUID) -> str:
    """A UUID as Kafka prints it."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


@lru_cache(maxsize=65536)
def uuid_from_text(text: str) -> UUID:
    """The UUID that Kafka prints as `text`. Raises ValueError."""
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"not a Kafka UUID: {text!r}")
    return UUID(bytes=raw)
