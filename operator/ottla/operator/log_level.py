"""What the operator logs: as it was started, or as a file says that may change while it runs.

The chart mounts the file from a ConfigMap, so that somebody who wants to see more needn't restart what they look at.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path

logger = logging.getLogger(__name__)

LOOKED_AGAIN_S = 5.0


class LogLevel(StrEnum):
    """What the operator logs."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def set_log_level(level: LogLevel) -> None:
    """From now on; kopf tells of itself only what somebody has to look at."""
    logging.getLogger().setLevel(level.value.upper())
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))


class FollowedLogLevel:
    """The level that stands in a file; while there is no such file, or no level in it, it stays as it is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = ""

    async def keep_following(self) -> None:
        """Looks until cancelled."""
        # Here and not above: the command line imports this module for its options, and has to start quickly.
        import asyncio

        while True:
            self.look()
            await asyncio.sleep(LOOKED_AGAIN_S)

    def look(self) -> None:
        """Takes the file's level if that has changed."""
        try:
            text = self._file.read_text(errors="replace").strip()
        except OSError:
            text = ""
        if text == self._read:
            return
        self._read = text
        if not text:
            return
        try:
            level = LogLevel(text.lower())
        except ValueError:
            known = ", ".join(LogLevel)
            logger.warning("the log level stays as it is: %s says '%s', and it is one of %s", self._file, text, known)
            return
        set_log_level(level)
        logger.log(logging.getLogger().level, "the log level is %s now, as %s says", level, self._file)
