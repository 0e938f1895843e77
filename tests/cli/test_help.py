"""`--help` of every command is whole and readable on narrow terminals."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from ottla.cli.main import app
from tests.cli.conftest import OTTLA, TIMEOUT_S, run_forked

Environment = dict[str, str]


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


EVERY = dict(commands(get_command(app), ()))


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_nothing_is_cut_or_too_wide(environment: Environment, path: tuple[str, ...], width: int) -> None:
    shown = run_forked((*path, "--help"), b"", environment | {"COLUMNS": str(width)})
    assert (shown.code, shown.stderr) == (0, "")
    too_wide = [line for line in shown.stdout.splitlines() if len(line) > width]
    assert not too_wide
    words = set(shown.stdout.replace(",", " ").split())
    for parameter in EVERY[path].params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            assert set(parameter.opts) <= words
    assert not re.search(r"<[a-z]", shown.stdout), "the name of a Python type instead of a description of the value"
    text = " ".join(shown.stdout.split())
    for child in getattr(EVERY[path], "commands", {}).values():
        assert child.help.split(". ")[0].split("\n")[0].rstrip(".") in text


def test_a_family_without_a_command_shows_its_help(environment: Environment) -> None:
    shown = run_forked(("topics",), b"", environment)
    assert shown.code == 2
    assert shown.stdout.startswith("Usage: ottla topics [OPTIONS] COMMAND")
    assert shown.stdout.endswith("exit.\n")


@pytest.mark.parametrize(("arguments", "unbuffered"), [("topics", "1"), ("topics --help", ""), ("consume --help", "1")])
def test_whoever_reads_it_may_go_away(environment: Environment, arguments: str, unbuffered: str) -> None:
    process = subprocess.Popen(
        [*OTTLA, *arguments.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(TIMEOUT_S) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_what_commands_share_stands_last(environment: Environment) -> None:
    for path in (("consume",), ("cluster",), ("topics", "create")):
        shown = run_forked((*path, "--help"), b"", environment).stdout
        assert shown.index("\nOptions:\n") < shown.index("\nShared options:\n")


def test_help_imports_no_tables() -> None:
    code = (
        "import sys; sys.argv = ['ottla', 'consume', '--help']\n"
        "from ottla.cli.main import main\n"
        "try: main()\nexcept SystemExit: print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False"
