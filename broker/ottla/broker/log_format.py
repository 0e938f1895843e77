"""How the broker writes its own log: one line for each event, for people (`text`) or for programs (`json`).

`ottla.log.format` sets the format, and `ottla.log.level` the lowest level that is written. A JSON line holds the
message, and in the field `event` the message's template without values, which is the same at each occurrence, so that
one can search for it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import TextIO

# The attributes of every LogRecord; any other attribute comes from the caller's `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_VISIBLE = {code: repr(chr(code))[1:-1] for code in (*range(32), 127) if code != 9}


class TextFormat(logging.Formatter):
    """Writes a line such as `2026-01-31 12:00:00.123 INFO  server: listening …`, with the time in UTC, and with the
    logger's name without the package's name."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; a traceback follows on lines of its own."""
        # Clients' text in a message must neither begin a line nor control a terminal.
        message = record.getMessage().translate(_VISIBLE)
        line = f"{_utc(record.created, ' ')} {record.levelname:<7} {_area(record.name)}: {message}"
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return line


class JsonFormat(logging.Formatter):
    """Writes each record as a JSON object on one line, even if the message or the traceback has several lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, which includes the traceback."""
        fields: dict[str, object] = {
            "time": _utc(record.created, "T") + "Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "event": str(record.msg),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return json.dumps(fields, default=str)


def configure_logging(form: str, level: str, stream: TextIO | None = None) -> None:
    """Writes all messages of `level` and above to `stream` (None: standard error) in the format `form`, text or
    json."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormat() if form == "json" else TextFormat())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def _utc(seconds: float, separator: str) -> str:
    whole = time.gmtime(seconds)
    return time.strftime(f"%Y-%m-%d{separator}%H:%M:%S", whole) + f".{int(seconds * 1000) % 1000:03d}"


def _area(name: str) -> str:
    return name.removeprefix("ottla.").removeprefix("broker.")
