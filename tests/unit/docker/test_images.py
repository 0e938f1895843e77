"""`make images` builds the images that the pages and the charts name, and the make targets in the pages exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.peers.tools import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
VERSION = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[0]


def built(*variables: str) -> list[list[str]]:
    """The commands that `make images` would run, without the variables of a `make` that runs this test."""
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--dry-run", "--no-print-directory", "images", *variables]
    done = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, timeout=60, check=True)
    return [shlex.split(line) for line in done.stdout.splitlines()]


def after(option: str, words: list[str]) -> str:
    """The word after an option in a command's words."""
    return words[words.index(option) + 1]


def test_each_image_is_built_without_a_daemon() -> None:
    commands = built()
    assert {after("-t", words): after("--target", words) for words in commands} == {
        f"ottla:{VERSION}": "broker",
        f"ottla-etcd:{VERSION}": "etcd",
        f"ottla-spark:{VERSION}": "spark",
    }
    targets = set(re.findall(r"^FROM .* AS ([\w-]+)$", (ROOT / "Dockerfile").read_text(), re.M))
    for words in commands:
        assert words[:2] == ["buildah", "build"]
        assert after("--target", words) in targets
        assert (ROOT / words[-1] / "Dockerfile").exists()


def test_registry_builder_and_base_are_said_by_variables() -> None:
    commands = built("REGISTRY=registry.example", "IMAGE_BUILD=docker build", "BASE_IMAGE=registry.example/python:3.13")
    assert all(words[:2] == ["docker", "build"] for words in commands)
    assert {after("-t", words).partition(":")[0] for words in commands} == {
        f"registry.example/{name}" for name in ("ottla", "ottla-etcd", "ottla-spark")
    }
    assert all(after("--build-arg", words) == "BASE_IMAGE=registry.example/python:3.13" for words in commands)


def test_the_pages_show_one_way_to_build_them() -> None:
    for page in PAGES:
        assert not re.findall(r"^(?:docker|podman|buildah) build.*", page.read_text(), re.M), page.name
    for page in (ROOT / "README.md", ROOT / "docs/kubernetes.md", ROOT / "docs/images.md"):
        text = page.read_text()
        assert "make images" in text, page.name
        assert set(re.findall(r"\bottla(?:-\w+)?:(\d[\w.]*)", text)) <= {VERSION}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_is_told_to_make_what_it_can(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text()
    commands = re.findall(r"`make ([a-z0-9-]+)", text) + re.findall(r"^make ([a-z0-9-]+)", text, re.M)
    assert set(commands) <= targets
