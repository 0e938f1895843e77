"""The limit of file descriptors is divided, so that connections never keep the broker from opening its logs."""

from __future__ import annotations

import resource

import pytest

from ottla.broker.descriptors import OTHERS, PER_SEGMENT, connections_max, raise_limit
from ottla.broker.log.segment import files_to_keep_open


@pytest.mark.parametrize("limit", [512, 1024, 4096, 65_536, 1_048_576])
def test_segments_connections_and_the_rest_fit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert PER_SEGMENT * files_to_keep_open() + connections_max() + OTHERS <= limit
    assert connections_max() >= limit // 4


def test_without_a_limit_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connections_max() > 2**30


def test_as_many_as_allowed_are_asked_for_and_a_refusal_is_borne(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(limits))
    raise_limit()
    assert asked == [(4096, 4096)]

    def refused(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refused)
    raise_limit()
