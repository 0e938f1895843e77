"""Small JSON files that a power loss leaves whole: the new one, or the one before."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def create(path: Path, content: Mapping[str, Any]) -> None:
    """Creates the file, unless it is there already. Of several processes, one succeeds. Raises OSError."""
    if path.exists():
        return
    new = _written(path, content)
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    finally:
        new.unlink()
    sync_directory(path.parent)


def replace(path: Path, content: Mapping[str, Any]) -> None:
    """Writes the file, whether it is there or not. Raises OSError."""
    _written(path, content).replace(path)
    sync_directory(path.parent)


def _written(path: Path, content: Mapping[str, Any]) -> Path:
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with open(new, "x") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    return new


def sync_directory(path: Path) -> None:
    """Flushes the directory's entries to disk."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
