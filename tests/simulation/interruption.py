"""Handles Ctrl-C and SIGTERM in programs of many runs: an interrupted program prints its counts up to then."""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTING = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Notes the first signal without interrupting the present run. A second signal ends the process."""

    def __init__(self) -> None:
        self._by: signal.Signals | None = None
        self._before = {each: signal.signal(each, self._note) or signal.SIG_DFL for each in INTERRUPTING}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._by = signal.Signals(number)
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def __bool__(self) -> bool:
        return self._by is not None

    @property
    def exit_code(self) -> int:
        """The exit code that a shell reports for a program that the signal ended."""
        assert self._by is not None
        return 128 + self._by

    def __str__(self) -> str:
        assert self._by is not None
        return f"interrupted by {self._by.name}: no run beyond these is counted"
