"""The logs that are opened and created once a full log directory has room again."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock
from uuid import UUID

from ottla.broker.reopening import Reopening
from ottla.broker.tasks import Tasks

TOPIC_ID = UUID(int=1)


def test_room_lets_logs_be_made_and_opened() -> None:
    events: list[Any] = []

    async def open_again(config_of: Any, tried: Any) -> None:
        events.append(config_of("t"))
        tried(TOPIC_ID, 3)

    async def scene() -> None:
        tasks = Tasks(Mock())
        replicas = Mock(
            open_again=lambda: events.append("made"),
            rules_of=lambda topic: Mock(log=f"rules of {topic}"),
            log_tried_again=lambda topic_id, index: events.append((topic_id, index)),
        )
        reports = Mock(logs_opened=lambda: events.append("reported"))
        Reopening(Mock(open_again=open_again), replicas, reports, tasks).room_again()
        assert events == ["made"]
        await asyncio.sleep(0.01)
        await tasks.cancel()

    asyncio.run(scene())
    assert events == ["made", "rules of t", (TOPIC_ID, 3), "reported"]
