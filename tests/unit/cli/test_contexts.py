"""The file with the command line's contexts, and the choice of the bootstrap address."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli import contexts
from ottla.cli.connection import find_target
from ottla.cli.errors import CommandError, NotFound, UsageError
from ottla.cli.route import Straight


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "new" / "config.toml"
    monkeypatch.setenv("OTTLA_CONFIG_FILE", str(path))
    return path


def test_what_is_stored_is_loaded() -> None:
    stored = contexts.ContextFile("a b", {"a b": 'host"1:9092', "c": "x:1,y:2"})
    contexts.store(stored)
    assert contexts.load() == stored


def test_precedence() -> None:
    assert find_target(Straight(), None, None).bootstrap == "127.0.0.1:9092"
    contexts.store(contexts.ContextFile("one", {"one": "one:1", "two": "two:2"}))
    assert find_target(Straight(), None, None).bootstrap == "one:1"
    assert find_target(Straight(), None, "two").bootstrap == "two:2"
    assert find_target(Straight(), "flag:3", None).bootstrap == "flag:3"
    with pytest.raises(UsageError):
        find_target(Straight(), "flag:3", "two")
    with pytest.raises(NotFound, match="'tow'"):
        find_target(Straight(), None, "tow")


@pytest.mark.parametrize("text", ["not toml", "[contexts.a]\nhost = 1\n", "contexts = 3\n"])
def test_a_broken_file_is_named(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(CommandError, match=str(file)):
        contexts.load()


def test_a_context_names_the_file_of_its_clients_properties(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OTTLA_CONFIG_FILE", str(tmp_path / "config.toml"))
    contexts.store(contexts.ContextFile("one", {"one": "one:1", "two": "two:2"}, {"one": "/one.properties"}))
    assert contexts.load().command_configs == {"one": "/one.properties"}
    assert find_target(Straight(), None, None, None).command_config == Path("/one.properties")
    assert find_target(Straight(), None, "two", None).command_config is None
    assert find_target(Straight(), "host:1", None, None).command_config is None
    assert find_target(Straight(), None, None, Path("/given")).command_config == Path("/given")
