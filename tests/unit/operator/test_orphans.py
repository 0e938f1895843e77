"""Topics without a resource: which are deleted, and which wait for a person's confirmation."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ottla.operator.objects import Ref
from ottla.operator.plan.orphans import (
    SETTLE_S,
    WINDOW_S,
    Definition,
    Disappearances,
    Orphan,
    Unreadable,
    Verdict,
    hold,
    orphans,
)
from ottla.operator.plan.remembered import Remembered, read_record
from ottla.operator.plan.topic import POLICY, Configure, KafkaPartition, KafkaTopic
from ottla.operator.plan.topic_owner import OWNER, Owner, mark, read_mark
from ottla.operator.spec.topic import DeletionPolicy, TopicResource

CLUSTER = "c-1"
DEFINITION = Definition("2025-01-01T00:00:00Z")
RECORD = read_record(Ref("shop", "main"), CLUSTER, None).record
REMEMBERED = Remembered(RECORD, frozenset(f"u-{number}" for number in range(66)))


def resource(number: int, **changes: object) -> TopicResource:
    name = f"t-{number}"
    made = TopicResource(Ref("shop", name), f"u-{number}", "2026-01-01T00:00:00Z", 1, Ref("shop", "main"), name)
    return replace(made, **changes)  # type: ignore[arg-type]


def owned(number: int, policy: str = "Delete", cluster: str = CLUSTER) -> KafkaTopic:
    overrides = {OWNER: mark(resource(number), cluster), POLICY: policy}
    return KafkaTopic(f"t-{number}", UUID(int=number), {0: KafkaPartition((0,), frozenset({0}))}, overrides)


def lost(*numbers: int) -> list[Orphan]:
    return orphans([owned(number) for number in numbers], [], {})


def judge(
    watch: Disappearances,
    now: float,
    gone: list[Orphan],
    of: int = 100,
    definition: Definition | Unreadable | None = DEFINITION,
    confirmed: str = "",
) -> Verdict:
    return watch.judge(now, gone, of, definition, REMEMBERED, confirmed)


def names(found: tuple[Orphan, ...] | list[Orphan]) -> list[str]:
    return [orphan.topic.name for orphan in found]


def test_who_is_an_orphan() -> None:
    topics = [owned(1), owned(2), owned(3), KafkaTopic("nobody's", UUID(int=9), {})]
    another_for_its_topic = resource(8, topic="t-2")
    assert names(orphans(topics, [resource(1), another_for_its_topic], {})) == ["t-3"]
    assert orphans(topics, [], {}, watched=frozenset({"other"})) == []


def remade(*numbers: int) -> list[Orphan]:
    """Topics whose Topic resources were deleted, and created again under the same names."""
    return orphans(
        [owned(number) for number in numbers], [resource(number, uid=f"v-{number}") for number in numbers], {}
    )


def test_a_resource_that_was_made_again_claims_what_goes_with_the_one_before_it() -> None:
    assert [orphan.remade for orphan in remade(1)] == [True]
    again = resource(1, uid="v-1")
    assert orphans([owned(1, "Retain")], [again], {}) == []
    assert orphans([owned(1)], [again], {"u-1": DeletionPolicy.RETAIN}) == [], (
        "the policy Retain, which was seen last, counts"
    )
    assert orphans([owned(1, "Held")], [again], {}) == [], "the topic waited, and has an owner now"
    assert orphans([owned(1)], [again, resource(8, topic="t-1")], {}) == [], "another resource wants the topic as it is"
    watch = Disappearances()
    first = judge(watch, 0.0, remade(1))
    assert (first.due, names(first.settling), first.look_again_s) == ((), ["t-1"], SETTLE_S)
    assert names(judge(watch, SETTLE_S, remade(1)).due) == ["t-1"]


def test_a_resource_that_was_made_again_to_retain_takes_the_topic_over() -> None:
    """`kubectl replace --force` of a Topic with the new policy Retain does this."""
    assert orphans([owned(1)], [resource(1, uid="v-1", deletion_policy=DeletionPolicy.RETAIN)], {}) == []


def test_a_resource_that_another_operator_gave_the_topic_keeps_it() -> None:
    """A Topic resource was deleted and made again. An older release of the operator gave the topic to the new resource.
    This resource asks for fewer partitions, so the topic's setting `ottla.owner` (its mark) still names the old one.
    """
    again = resource(1, uid="v-1")
    assert orphans([owned(1)], [again], {}, {"v-1"}) == []
    assert [orphan.remade for orphan in orphans([owned(1)], [again], {}, {"u-1"})] == [True]


def test_many_that_were_made_again_are_taken_over_and_need_no_person() -> None:
    watch = Disappearances()
    verdict = judge(watch, 0.0, [*remade(*range(11)), *lost(11)])
    assert (len(verdict.taken_over), names(verdict.held), verdict.settling) == (11, ["t-11"], ())
    assert names(judge(watch, 1.0, [*remade(0), *lost(11)], confirmed=verdict.token).due) == ["t-11"]
    later = judge(watch, 1000.0, remade(0))
    assert (later.due, names(later.taken_over)) == ((), ["t-0"]), (
        "a confirmation counts only for the topics that were held then"
    )


def test_one_that_was_made_again_with_its_definition_or_its_cluster_is_taken_over() -> None:
    anew = Definition("2026-06-01T00:00:00Z")
    assert names(judge(Disappearances(), 0.0, remade(1), definition=anew).taken_over) == ["t-1"]
    of_before = orphans([owned(1, cluster="c-0")], [resource(1, uid="v-1")], {})
    assert names(judge(Disappearances(), 0.0, of_before).taken_over) == ["t-1"]


def test_the_policy_is_the_newest_that_is_known() -> None:
    assert orphans([owned(1, "Retain")], [], {})[0].policy is DeletionPolicy.RETAIN
    assert orphans([owned(1)], [], {"u-1": DeletionPolicy.RETAIN})[0].policy is DeletionPolicy.RETAIN


def test_a_mark_that_isnt_ours_is_nobodys() -> None:
    assert read_mark("somebody") is None
    assert read_mark("") is None


def test_a_mark_is_read_as_it_was_written() -> None:
    one = resource(1)
    assert read_mark(mark(one, "c-9")) == Owner(one.ref, one.uid, one.created, "c-9")
    assert read_mark("shop/t-1/u-1/2026-01-01T00:00:00Z") == Owner(one.ref, one.uid, one.created)


def test_topics_of_a_cluster_that_was_made_anew_wait_however_few() -> None:
    """This happens after a namespace was deleted and restored: the brokers' volumes are bound again, but the Topics
    aren't applied yet.
    """
    watch = Disappearances()
    of_before = orphans([owned(1, cluster="c-0")], [], {})
    judge(watch, 0.0, of_before, of=1)
    held = judge(watch, 1000.0, of_before, of=1)
    assert (held.due, names(held.held), held.reason) == ((), ["t-1"], "ClusterMadeAnew")
    both = [*of_before, *lost(2)]
    judge(watch, 1001.0, both)
    later = judge(watch, 1020.0, both)
    assert (names(later.due), names(later.held)) == (["t-2"], ["t-1"]), "only t-1 has the mark of an earlier Cluster"
    assert names(judge(watch, 1030.0, of_before, confirmed=held.token).due) == ["t-1"]


def test_topics_that_kubernetes_does_not_remember_wait_however_few() -> None:
    """This happens after Kubernetes, with the same Cluster, was restored to a state from before the Topics were
    created."""
    watch = Disappearances()
    gone = lost(66)
    judge(watch, 0.0, gone, of=1)
    held = judge(watch, 1000.0, gone, of=1)
    assert (held.due, names(held.held), held.reason) == ((), ["t-66"], "TopicsNotRemembered")
    both = [*gone, *lost(2)]
    judge(watch, 1001.0, both)
    assert names(judge(watch, 1020.0, both).due) == ["t-2"]
    assert names(judge(watch, 1030.0, gone, confirmed=held.token).due) == ["t-66"]


def test_a_topic_that_is_made_again_in_a_restored_kubernetes_takes_its_topic_over() -> None:
    assert names(judge(Disappearances(), 0.0, remade(66)).taken_over) == ["t-66"]


def test_a_mark_from_before_clusters_were_recorded_waits() -> None:
    topic = KafkaTopic("t-1", UUID(int=1), {}, {OWNER: "shop/t-1/u-1/2026-01-01T00:00:00Z", POLICY: "Delete"})
    watch = Disappearances()
    gone = orphans([topic], [], {})
    judge(watch, 0.0, gone)
    assert names(judge(watch, 1000.0, gone).held) == ["t-1"]


def test_one_is_deleted_when_it_has_been_away_for_a_while() -> None:
    watch = Disappearances()
    first = judge(watch, 0.0, lost(1), of=1)
    assert (first.due, first.held, first.look_again_s) == ((), (), SETTLE_S)
    assert names(judge(watch, SETTLE_S, lost(1), of=1).due) == ["t-1"]


def test_one_that_comes_back_in_between_counts_anew() -> None:
    watch = Disappearances()
    judge(watch, 0.0, lost(1))
    judge(watch, 5.0, [])
    assert judge(watch, SETTLE_S + 1, lost(1)).due == ()


def test_more_than_a_tenth_waits_until_somebody_confirms_these() -> None:
    watch = Disappearances()
    gone = lost(*range(11))
    judge(watch, 0.0, gone)
    held = judge(watch, 100.0, gone)
    assert held.due == ()
    assert len(held.held) == 11
    assert "11 of 100" in held.why
    assert judge(watch, 200.0, gone, confirmed="some other").due == ()
    assert len(judge(watch, 200.0, gone, confirmed=held.token).due) == 11
    one_more = lost(50)
    judge(watch, 300.0, one_more)
    assert len(judge(watch, 320.0, one_more).due) == 1, "confirmed deletions don't count towards the limit"


def test_what_was_confirmed_stays_confirmed_until_it_is_done() -> None:
    """The deletion of thousands of topics takes several reconciles."""
    watch = Disappearances()
    gone = lost(*range(20))
    token = judge(watch, 0.0, gone).token
    assert len(judge(watch, 1.0, gone, confirmed=token).due) == 20
    rest = judge(watch, 2.0, gone[12:], confirmed=token)
    assert (len(rest.due), rest.held) == (8, ())
    assert judge(watch, 3.0, [], confirmed=token).due == ()
    assert judge(watch, 50.0, gone[12:]).due == (), "these topics had owners again in between"


def test_a_deletion_that_fails_counts_once() -> None:
    watch = Disappearances()
    judge(watch, 0.0, lost(1))
    for attempt in range(10):
        assert len(judge(watch, SETTLE_S + attempt, lost(1)).due) == 1


def test_a_confirmation_is_of_these_topics_only() -> None:
    watch = Disappearances()
    token = judge(watch, 0.0, lost(*range(11))).token
    assert judge(watch, 100.0, lost(*range(12)), confirmed=token).due == ()


def test_ten_of_a_hundred_go_one_more_within_the_window_waits_and_waits() -> None:
    watch = Disappearances()
    judge(watch, 0.0, lost(*range(10)))
    assert len(judge(watch, 10.0, lost(*range(10))).due) == 10
    judge(watch, 20.0, lost(20), of=90)
    assert names(judge(watch, 40.0, lost(20), of=90).held) == ["t-20"]
    assert names(judge(watch, 40.0 + 2 * WINDOW_S, lost(20), of=90).held) == ["t-20"]
    watch = Disappearances()
    judge(watch, 0.0, lost(*range(10)))
    judge(watch, 10.0, lost(*range(10)))
    late = 20.0 + WINDOW_S
    judge(watch, late, lost(20), of=90)
    assert names(judge(watch, late + SETTLE_S, lost(20), of=90).due) == ["t-20"]


def test_what_says_itself_that_it_waits_waits_whatever_was_forgotten() -> None:
    gone = lost(1)
    assert hold(gone[0]) == Configure("t-1", {POLICY: "Held"})
    marked = orphans([owned(1, "Held")], [], {})
    assert hold(marked[0]) is None
    assert hold(orphans([owned(1, "Retain")], [], {})[0]) is None
    watch = Disappearances()
    judge(watch, 0.0, marked)
    verdict = judge(watch, 100.0, marked)
    assert verdict.due == ()
    assert names(judge(watch, 100.0, marked, confirmed=verdict.token).due) == ["t-1"]


def test_nothing_goes_while_the_definition_is_gone_or_going() -> None:
    for definition in (None, Definition("2025-01-01T00:00:00Z", deleting=True)):
        watch = Disappearances()
        judge(watch, 0.0, lost(1), definition=definition)
        verdict = judge(watch, 100.0, lost(1), definition=definition)
        assert verdict.due == ()
        assert "definition" in verdict.why


def test_what_vanished_with_an_older_definition_waits_whatever_was_forgotten() -> None:
    anew = Definition("2026-06-01T00:00:00Z")
    watch = Disappearances()
    judge(watch, 0.0, lost(1), definition=anew)
    verdict = judge(watch, 100.0, lost(1), definition=anew)
    assert verdict.due == ()
    assert names(verdict.held) == ["t-1"]
    assert names(judge(watch, 100.0, lost(1), definition=anew, confirmed=verdict.token).due) == ["t-1"]


def test_where_the_definition_cant_be_read_all_at_once_waits() -> None:
    watch = Disappearances()
    judge(watch, 0.0, lost(1), of=1, definition=Unreadable())
    assert judge(watch, 100.0, lost(1), of=1, definition=Unreadable()).due == ()
    watch = Disappearances()
    judge(watch, 0.0, lost(1), of=2, definition=Unreadable())
    assert len(judge(watch, 100.0, lost(1), of=2, definition=Unreadable()).due) == 1
