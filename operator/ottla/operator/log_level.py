"""The operator's log level: the level given at its start, or the level in a file, which may change while the operator
runs.

The chart mounts the file from a ConfigMap, so that a person can change the level without a restart of the operator.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path

logger = logging.getLogger(__name__)

LOOKED_AGAIN_S = 5.0


class LogLevel(StrEnum):
    """The least severity that the operator logs."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def set_log_level(level: LogLevel) -> None:
    """Sets the log level from now on; of kopf's own messages, only warnings and errors are logged."""
    logging.getLogger().setLevel(level.value.upper())
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))


class FollowedLogLevel:
    """Follows the level in a file. While there is no such file, or no level in it, the level stays as it is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = ""

    async def keep_following(self) -> None:
        """Reads the file again and again, until cancelled."""
        # asyncio is imported here, because the command line imports this module for its options, and has to start fast.
        import asyncio

        while True:
            self.look()
            await asyncio.sleep(LOOKED_AGAIN_S)

    def look(self) -> None:
        """Sets the file's level, if the file has changed."""
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
            logger.warning("the log level stays as it is: %s says '%s', which isn't one of %s", self._file, text, known)
            return
        set_log_level(level)
        logger.log(logging.getLogger().level, "the log level is %s now, as %s says", level, self._file)
