"""The file with the command line's contexts, and the choice of the bootstrap address."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli import contexts
from ottla.cli.connection import find_command_config, resolve_bootstrap
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
    assert resolve_bootstrap(None, None) == "127.0.0.1:9092"
    contexts.store(contexts.ContextFile("one", {"one": "one:1", "two": "two:2"}))
    assert resolve_bootstrap(None, None) == "one:1"
    assert resolve_bootstrap(None, "two") == "two:2"
    assert resolve_bootstrap("flag:3", None) == "flag:3"
    with pytest.raises(UsageError):
        resolve_bootstrap("flag:3", "two")
    with pytest.raises(NotFound, match="'tow'"):
        resolve_bootstrap(None, "tow")


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
    assert find_command_config(Straight(), None, None, None) == Path("/one.properties")
    assert find_command_config(Straight(), None, "two", None) is None
    assert find_command_config(Straight(), "host:1", None, None) is None
    assert find_command_config(Straight(), None, None, Path("/given")) == Path("/given")
