"""docs/cli.md names every command and exit code; the command line starts without the modules that it needs only
later."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from ottla.cli.errors import ExitCode
from ottla.cli.main import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def commands(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields (command, the first sentence of its help) for every command that can be run."""
    children = getattr(command, "commands", {})
    if not children or getattr(command, "invoke_without_command", False):
        yield path, (command.help or "").split("\n")[0].partition(". ")[0].rstrip(".")
    for name, child in sorted(children.items()):
        yield from commands(child, f"{path} {name}")


def test_the_page_lists_every_command_with_its_help() -> None:
    expected = [f"| `{path}` | {text} |" for path, text in commands(get_command(app), "ottla")]
    listed = PAGE.read_text().partition("## All commands\n")[2].strip().splitlines()[2:]
    assert listed == expected, "put these lines under the head of the table of all commands:\n" + "\n".join(expected)


def test_the_page_lists_every_exit_code() -> None:
    table = PAGE.read_text().partition("| exit code |")[2].partition("\n\n")[0]
    listed = {
        int(number)
        for row in table.splitlines()
        for number in re.findall(r"\d+", row.split("|")[1] if "|" in row else "")
    }
    assert listed == {code.value for code in ExitCode}


def test_every_option_and_command_has_help() -> None:
    silent = []

    def visit(command: Any, path: str) -> None:
        if not command.help:
            silent.append(path)
        silent.extend(f"{path} {param.name}" for param in command.params if not getattr(param, "help", ""))
        for name, child in getattr(command, "commands", {}).items():
            visit(child, f"{path} {name}")

    visit(get_command(app), "ottla")
    assert not silent


def test_starting_imports_neither_the_client_nor_the_broker() -> None:
    unwanted = ["kafka", "rich", "uvloop", "kio", "ottla.broker", "ottla.metadata.embedded", "asyncio"]
    unwanted += ["shlex", "ottla.cli.dev_security"]
    code = f"import sys, ottla.cli.main; print(*[name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
