"""The text of `--help`: plain, in sections, and readable on narrow terminals.

Owns the layout of the help. Names of options and commands are never cut: a name that is too wide has a line of its own.
Other text folds between words. There are no tables and no colours, because their libraries would take time to import.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from ottla.cli.errors import PipeClosed

F = TypeVar("F", bound=Callable[..., Any])

_TYPE = re.compile(r"<(?:list\[)?([\w|]+)\]?(?: range)?>$")
_TYPE_NAMES = {"str": "TEXT", "int": "N", "float": "NUMBER", "path": "PATH"}
_OWN_SECTIONS = ("Arguments", "Options")
_DEFAULT_SECTION = "Commands"
_NARROW_WIDTH = 70
_NAMES_WIDTH_MAX = 28
_NAMES_WIDTH_MAX_NARROW = 16


class _Piped:
    """Ends the command without an error if the reader of the help has closed the pipe, as for all other output. The
    parser alone would end the command with exit code 1."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Parses the command line, and prints the help if `--help` is given."""
        try:
            return super().make_context(*arguments, **settings)  # type: ignore[misc]
        except BrokenPipeError as error:
            raise PipeClosed from error


class _Command(_Piped, TyperCommand):
    """A command. The help lists the command's own options before the shared ones."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command in the usage line."""
        return ["[OPTIONS]", *_arguments_text(self, ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The sections of arguments and options."""
        _write_parameters(self, ctx, formatter)


class Group(_Piped, TyperGroup):
    """A command with subcommands; its help lists the subcommands in sections."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command in the usage line."""
        return ["[OPTIONS]", *_arguments_text(self, ctx), self.subcommand_metavar]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The sections of options and commands."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                section = panel if isinstance(panel, str) else _DEFAULT_SECTION
                sections.setdefault(section, []).append((name, _first_sentence(command.help or "")))
        for section, rows in sections.items():
            _write_section(formatter, section, rows)
        _write_parameters(self, ctx, formatter)


class App(typer.Typer):
    """A family of commands whose help has the layout of this module."""

    def __init__(self, cls: type[Group] = Group, **settings: Any) -> None:
        super().__init__(cls=cls, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Adds a command whose help has the layout of this module."""
        return super().command(name, cls=_Command, **settings)


def _arguments_text(command: Any, ctx: Any) -> list[str]:
    texts = []
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            texts.append(name if parameter.required or name.startswith("[") else f"[{name}]")
    return texts


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        names, text = record
        if parameter.param_type_name == "argument":
            section, names = _OWN_SECTIONS[0], parameter.metavar or parameter.name.upper()
        else:
            section = getattr(parameter, "rich_help_panel", None) or _OWN_SECTIONS[1]
            names = _TYPE.sub(lambda found: _TYPE_NAMES.get(found[1], found[1]), names)
        sections.setdefault(section, []).append((names, text))
    # A command's own parameters have no section and come first; the sections of shared options come last.
    for section in sorted(sections, key=lambda section: (section not in _OWN_SECTIONS, section)):
        _write_section(formatter, section, sections[section])


def _write_section(formatter: Any, name: str, rows: list[tuple[str, str]]) -> None:
    width = _NAMES_WIDTH_MAX if formatter.width > _NARROW_WIDTH else _NAMES_WIDTH_MAX_NARROW
    with formatter.section(name):
        formatter.write_dl(rows, col_max=width)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")
