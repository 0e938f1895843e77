"""The sources of an older commit: of the commit before HEAD, or of OTTLA_PREVIOUS, which may be any commit that git
knows."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.peers.tools import ROOT


def previous_sources(folder: Path, *parts: str) -> Path:
    """Extracts the commit's files, or `parts` of them, to `folder`. Skips the test if the clone has no older commit, or
    isn't a clone."""
    asked = os.environ.get("OTTLA_PREVIOUS")
    archive = ["git", "-C", str(ROOT), "archive", "--format=tar", asked or "HEAD~1", *parts]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        assert asked is None, done.stderr.decode()
        pytest.skip(f"needs the previous commit (git fetch --deepen 1): {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as sources:
        sources.extractall(folder, filter="data")
    return folder
