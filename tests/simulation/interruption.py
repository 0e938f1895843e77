"""Programs of many runs that are interrupted, and say what they have counted until then: Ctrl-C, and SIGTERM."""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTING = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Notes the first such signal, and does nothing else: a run isn't torn apart. A second one ends the process."""

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
        """As a shell has it of a program that a signal ended."""
        assert self._by is not None
        return 128 + self._by

    def __str__(self) -> str:
        assert self._by is not None
        return f"interrupted by {self._by.name}: no run beyond these is counted"
