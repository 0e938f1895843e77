"""Paths in a spec: of this machine, or of a file system that only Spark reaches."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_path(place: str) -> Path | None:
    """The path that a spec gives, as a path of this machine; None if it is one of another file system."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else place)


def resolved(place: str) -> str:
    """The one form of a path: absolute, without symbolic links; an address elsewhere without a slash at its end."""
    path = local_path(place)
    return place.rstrip("/") if path is None else str(path.resolve())
