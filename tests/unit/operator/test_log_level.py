"""The operator's log level changes while it runs. Before the fix, a change of the level took a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from ottla.operator import log_level
from ottla.operator.log_level import FollowedLogLevel, LogLevel, set_log_level


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("kopf")]
    before = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


def now() -> str:
    return logging.getLevelName(logging.getLogger().level).lower()


def test_a_changed_file_changes_the_level(tmp_path: Path) -> None:
    set_log_level(LogLevel.info)
    file = tmp_path / "log.level"
    followed = FollowedLogLevel(file)
    followed.look()
    assert now() == "info", "without a file the level stays"
    for text, level in (("debug\n", "debug"), ("WARNING", "warning"), ("info", "info"), ("error", "error")):
        file.write_text(text)
        followed.look()
        assert now() == level
        assert logging.getLogger("kopf").level == max(logging.getLogger().level, logging.WARNING)
    file.unlink()
    followed.look()
    assert now() == "error", "the level stays"


def test_what_is_no_level_is_told_once_and_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_log_level(LogLevel.info)
    file = tmp_path / "log.level"
    followed = FollowedLogLevel(file)
    file.write_text("chatty")
    for _ in range(3):
        followed.look()
    assert now() == "info"
    (record,) = caplog.records
    assert "says 'chatty', which isn't one of debug, info, warning, error" in record.getMessage()


def test_it_is_looked_at_again_and_again(tmp_path: Path) -> None:
    set_log_level(LogLevel.info)
    file = tmp_path / "log.level"

    async def run() -> None:
        following = asyncio.create_task(FollowedLogLevel(file).keep_following())
        await asyncio.sleep(0)
        file.write_text("debug")
        for _ in range(3000):
            if now() == "debug":
                break
            await asyncio.sleep(0.01)
        assert now() == "debug"
        following.cancel()
        await asyncio.wait([following])
        assert following.cancelled()

    with patch.object(log_level, "LOOKED_AGAIN_S", 0.01):
        asyncio.run(run())
