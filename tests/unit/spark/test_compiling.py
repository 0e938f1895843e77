"""Compiled kernels are cached only in a directory that no other user could have prepared."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ottla.spark.compiling import temporary_place


@pytest.mark.parametrize("planted", ["others may write there", "a link", "a file"])
def test_what_others_may_have_planted_is_not_trusted(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"ottla-kernels-{os.getuid()}"
    if planted == "a link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    elif planted == "a file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    assert temporary_place() is None
    place.unlink() if place.is_symlink() or place.is_file() else place.rmdir()
    assert temporary_place() == str(place)
