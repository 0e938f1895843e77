"""Prints a command's results: tables for people, JSON for programs.

A command passes plain dictionaries; only this module knows whether they become a table or a JSON document. The keys of
the dictionaries are the stable interface for programs; the columns may change. Results go to stdout, everything else
(progress, notes) to stderr, so that a pipe receives results only.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.cli import table
from ottla.cli.errors import sentences


class Output:
    """Prints a command's results as tables for people, or (`as_json`) as JSON for programs."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json

    def rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Mapping[str, str],
        *,
        empty: str = "",
        prose: bool = False,
    ) -> None:
        """Prints one line per row. `columns` maps a row's keys to headings, in order; JSON also has the other keys.

        `empty` is printed for people if there are no rows. If the values are whole sentences (`prose`), each of them
        has a line of its own.
        """
        if self.as_json:
            self.document(list(rows))
        elif rows and prose:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            headings = [table.Column(heading, False) for heading in columns.values()]
            for line in table.blocks(headings, [[cell(row.get(key)) for key in columns] for row in rows], width):
                print(line)
        elif rows:
            self._table(rows, columns)
        elif empty:
            self.note(empty)

    def record(self, record: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        """Prints one object, such as a cluster, with one property on each line."""
        if self.as_json:
            self.document(record)
            return
        width = max(len(label) for label in labels.values())
        for key, label in labels.items():
            print(f"{label + ':':<{width + 1}} {cell(record.get(key))}")

    def done(self, sentence: str, data: Mapping[str, Any]) -> None:
        """Prints that something was done: a sentence for people, `data` for programs."""
        if self.as_json:
            self.document(data)
        else:
            print(sentence)

    def title(self, text: str) -> None:
        """Prints a heading between tables, for people only."""
        if not self.as_json:
            print(text)

    def note(self, text: str) -> None:
        """Prints a remark for people to stderr, because it is no result. With --json nothing is printed."""
        if not self.as_json:
            print(text, file=sys.stderr)

    def warn(self, message: str, remedy: str) -> None:
        """Prints a warning that the result is incomplete or may mislead, to stderr; with --json as JSON."""
        if self.as_json:
            print(json.dumps({"warning": {"message": message, "remedy": remedy}}), file=sys.stderr)
        else:
            print(f"warning: {sentences(message, remedy)}", file=sys.stderr)

    def document(self, value: Any) -> None:
        """Prints one JSON document."""
        print(json.dumps(value, indent=2, ensure_ascii=False, default=str))

    def line(self, value: Mapping[str, Any]) -> None:
        """Prints one JSON document on one line and flushes it immediately, for streams of documents."""
        print(json.dumps(value, ensure_ascii=False, default=str), flush=True)

    def _table(self, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
        numeric = {
            key: all(row.get(key) is None or isinstance(row.get(key), int | float) for row in rows) for key in columns
        }
        # Nothing is folded in a pipe: a program that reads it would take a folded name for two names.
        terminal = sys.stdout.isatty()
        for line in table.lines(
            [table.Column(heading, numeric[key]) for key, heading in columns.items()],
            [[cell(row.get(key)) for key in columns] for row in rows],
            shutil.get_terminal_size().columns if terminal else None,
            bold=terminal and os.environ.get("TERM") != "dumb",
        ):
            print(line)


def reader_gone() -> Callable[[], bool]:
    """A function that says, without a write, whether the reading end of stdout's pipe was closed."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return lambda: False
    return lambda: any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def cell(value: Any) -> str:
    """A value as a table shows it; a dash for an empty or missing value."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple | set):
        return ",".join(str(item) for item in value) or "-"
    return str(value)
