"""Assembles revisions from the answers of etcd's watches: split, repeated, interrupted, or with only progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aetcd import rpc

from ottla.metadata.etcd_messages import Assembly, Keys

PREFIX = b"/ottla/assembly/"


def answers(*events: tuple[int, str], fragment: bool = False, progress: int = 0, created: bool = False) -> Any:
    """A watch's answer with these events, each as (revision, key)."""
    return rpc.WatchResponse(
        header=rpc.ResponseHeader(revision=progress or 10**6),
        created=created,
        fragment=fragment,
        events=[
            rpc.Event(type=rpc.Event.PUT, kv=rpc.KeyValue(key=PREFIX + key.encode(), mod_revision=revision))
            for revision, key in events
        ],
    )


@pytest.fixture
def assembled() -> Callable[..., list[tuple[int, str]]]:
    assembly = Assembly(Keys(PREFIX.decode()), 10)

    def add(*arguments: Any, **named: Any) -> list[tuple[int, str]]:
        if named.pop("interrupted", False):
            assembly.interrupted()
        complete = assembly.add(answers(*arguments, **named))
        return [(r.revision, "".join(change.key for change in r.changes)) for r in complete] + [(assembly.position, "")]

    return add


def test_revisions_are_put_together(assembled: Callable[..., list[tuple[int, str]]]) -> None:
    assert assembled(created=True) == [(10, "")]
    assert assembled((11, "a"), (11, "b"), (12, "c")) == [(11, "ab"), (12, "c"), (12, "")]
    assert assembled((13, "a"), (14, "b"), fragment=True) == [(13, "a"), (13, "")]
    assert assembled((14, "c"), fragment=True) == [(13, "")]
    assert assembled((14, "d"), (15, "e")) == [(14, "bcd"), (15, "e"), (15, "")]
    # After a cut in the middle of a revision the whole revision is sent again, perhaps after revisions that were
    # delivered before.
    assert assembled((16, "a"), fragment=True) == [(15, "")]
    assert assembled((15, "e"), (16, "a"), (16, "b"), interrupted=True) == [(16, "ab"), (16, "")]
    assert assembled(progress=40) == [(40, "")]
    assert assembled(progress=30) == [(40, "")]
    assert assembled((41, "z"), progress=45) == [(41, "z"), (41, "")]
