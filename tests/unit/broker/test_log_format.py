"""The two formats of the broker's own log."""

import io
import json
import logging

import pytest

from ottla.broker.log_format import JsonFormat, TextFormat, configure_logging


def record(message: str, *values: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("ottla.broker.partition", logging.INFO, __file__, 1, message, values, None)
    made.created = 1767225600.5
    vars(made).update(extra)
    return made


def test_text_is_one_readable_line() -> None:
    line = TextFormat().format(record("%s: leads in epoch %d", "t-0", 3))
    assert line == "2026-01-01 00:00:00.500 INFO    partition: t-0: leads in epoch 3"


def test_text_does_not_drive_a_terminal() -> None:
    assert "\x1b" not in TextFormat().format(record("from %s", "\x1b[2J"))


def test_text_stays_on_its_line() -> None:
    assert "\n" not in TextFormat().format(record("from %s", "one\ntwo\rthree"))


def test_json_has_the_message_and_what_stays_the_same_in_it() -> None:
    fields = json.loads(JsonFormat().format(record("%s: leads in epoch %d", "t-0", 3, topic="t")))
    assert fields == {
        "time": "2026-01-01T00:00:00.500Z",
        "level": "INFO",
        "logger": "ottla.broker.partition",
        "message": "t-0: leads in epoch 3",
        "event": "%s: leads in epoch %d",
        "topic": "t",
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_tracebacks_are_told(form: str) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        configure_logging(form, "info", stream)
        logging.getLogger("ottla.x").debug("not shown")
        try:
            raise ValueError("bad")
        except ValueError:
            logging.getLogger("ottla.x").exception("it failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(False)
    written = stream.getvalue()
    assert "not shown" not in written
    assert "ValueError: bad" in written
    assert (written.count("\n") == 1) == (form == "json")
