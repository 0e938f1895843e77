"""Random interleavings of producers' requests, with delays and repeats: no request ends or extends another transaction
than its own."""

from __future__ import annotations

from collections import Counter

from ottla.broker.transaction.metadata import V1, V2
from tests.unit.examples import among, examples

from .interleavings import Play


def played(seed: int, version: int) -> Play:
    play = Play(seed, version)
    play.run(600)
    play.finish()
    return play


def test_by_the_newer_protocol_no_transaction_is_hit_by_requests_of_another() -> None:
    seen: Counter[str] = Counter()
    for seed in among(range(500)):
        play = played(seed, V2)
        assert not play.mistakes(), f"seed {seed}"
        runs = play.runs()
        seen["committed"] += sum(run.commits is True for run in runs)
        seen["aborted"] += sum(run.commits is False for run in runs)
        seen["by the coordinator"] += sum(run.ended_by == ("coordinator", 0) for run in runs)
        seen["told"] += len(play.told)
        seen["producers"] += play.born
        seen["rotated"] += len({run.producer[0] for run in runs}) > 1
    assert all(seen[what] > examples(30) for what in seen), seen
    assert len(seen) == 6


def test_by_the_older_protocol_they_are() -> None:
    """With the older protocol, requests do hit other transactions: a flaw that Jepsen's analysis of Kafka found. So the
    plays would find such a mistake of the newer protocol, too."""
    assert any(played(seed, V1).mistakes() for seed in range(100))
