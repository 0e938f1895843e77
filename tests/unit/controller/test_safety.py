"""Whatever happens to brokers, moves and settings, no decision loses committed records, and in the end nothing is left
to decide.

The checks are tested, too: they must find each planted bug within a number of seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ottla.controller import decide, reassignment
from ottla.metadata import elections, eligibility
from ottla.metadata.model.brokers import Broker
from ottla.metadata.model.partitions import NO_LEADER
from tests.unit.controller import replicated
from tests.unit.controller.replicated import Replicated
from tests.unit.examples import examples

SEEDS = 400


def play(random: Random, *, eligible: bool, steps: int = 250) -> Replicated:
    partition = Replicated(random, eligible=eligible)
    for _ in range(steps):
        partition.step()
    partition.heal()
    return partition


@settings(max_examples=examples(40), deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_no_decision_loses_what_was_committed(random: Random, eligible: bool) -> None:
    play(random, eligible=eligible)


def test_everything_was_seen() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        seen.update(play(Random(seed), eligible=True).seen)
    for what in ("commits", "kills", "moves", "elections", "from the ELR", "from the ISR", "losses"):
        assert seen[what] > 3, seen


def _patched(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bug: Any) -> None:
    for place in (module, decide, elections, reassignment, replicated):
        if hasattr(place, name):
            monkeypatch.setattr(place, name, bug)


def a_restart_counts_as_clean(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "holds_all_since", lambda broker, epoch: True)


def the_elr_outlives_a_whole_isr(patch: pytest.MonkeyPatch) -> None:
    right = eligibility.with_eligible

    def bug(before: Any, after: Any, brokers: Any, min_isr: int) -> Any:
        return right(before, after, brokers, min_isr and 99) if len(after.isr) < len(after.replicas) else after

    _patched(patch, eligibility, "with_eligible", bug)


def a_move_ends_before_its_target_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    def bug(partition: Any, electorate: Any) -> Any:
        if not partition.reassigning or not set(partition.target) & set(partition.isr):
            return partition
        return elections.led(reassignment._restricted(partition, partition.target), electorate)

    right = reassignment.completed
    _patched(patch, reassignment, "completed", lambda *given: bug(*given) if given[0].adding else right(*given))


def a_cancelled_move_empties_the_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reassignment, "can_cancel", lambda partition, brokers: True)


def a_new_registration_is_the_old_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections.Electorate, "alive", lambda electorate, replica, epoch: replica in electorate.brokers)


def an_election_keeps_the_leader_epoch(patch: pytest.MonkeyPatch) -> None:
    right = elections.stamped
    bug = lambda before, after: replace(right(before, after), leader_epoch=before.leader_epoch)  # noqa: E731
    _patched(patch, elections, "stamped", bug)


def the_first_to_come_back_leads_whatever_it_lost(patch: pytest.MonkeyPatch) -> None:
    right = elections._revived
    without = eligibility.NO_ELR
    patch.setattr(elections, "_revived", lambda partition, who: right(partition, replace(who, min_isr=without)))


def the_first_member_leads_whatever_the_logs_hold(patch: pytest.MonkeyPatch) -> None:
    def bug(partition: Any, electorate: Any) -> int:
        running = elections._in_order(partition, partition.isr, electorate)
        return next(filter(electorate.electable, running), NO_LEADER)

    patch.setattr(elections, "_with_most", bug)


def the_longest_log_leads_whatever_its_epoch(patch: pytest.MonkeyPatch) -> None:
    right = elections._with_most

    def bug(partition: Any, electorate: Any) -> int:
        ends = {replica: end._replace(last_epoch=-end.last_epoch) for replica, end in electorate.ends.items()}
        return right(partition, replace(electorate, ends=ends))

    patch.setattr(elections, "_with_most", bug)


def any_replica_may_be_elected(patch: pytest.MonkeyPatch) -> None:
    _patched(patch, decide, "_unclean_allowed", lambda *_: True)


def the_dead_leave_the_isr_to_the_last(patch: pytest.MonkeyPatch) -> None:
    right = elections.led

    def bug(partition: Any, electorate: Any) -> Any:
        after = right(partition, electorate)
        if after.leader != NO_LEADER or len(after.isr) == 1:
            return after
        return replace(after, isr=after.isr[:1], isr_epochs=after.isr_epochs[:1])

    _patched(patch, elections, "led", bug)


def a_move_never_ends(patch: pytest.MonkeyPatch) -> None:
    _patched(patch, reassignment, "completed", lambda partition, electorate: partition)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    a_restart_counts_as_clean,
    the_elr_outlives_a_whole_isr,
    a_move_ends_before_its_target_is_in_sync,
    a_cancelled_move_empties_the_isr,
    a_new_registration_is_the_old_member,
    an_election_keeps_the_leader_epoch,
    the_first_to_come_back_leads_whatever_it_lost,
    the_first_member_leads_whatever_the_logs_hold,
    the_longest_log_leads_whatever_its_epoch,
    any_replica_may_be_elected,
    the_dead_leave_the_isr_to_the_last,
    a_move_never_ends,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    for seed in range(SEEDS):
        try:
            play(Random(seed), eligible=True)
        except Exception:
            return
    pytest.fail(f"none of {SEEDS} seeds finds this bug")
