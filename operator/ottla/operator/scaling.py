"""Drains brokers before their pods are removed, and moves a share of the replicas to new brokers.

If partitions lack replicas although every wanted broker is ready, they may have replicas on brokers that are gone and
not wanted: a Cluster was made again with fewer brokers. Partitions that other brokers have in sync are copied from
these again, as in a drain. Partitions that only the missing brokers have wait for a person, and the volumes of the
missing brokers are left alone.

The Cluster's status keeps what another process of the operator has to know: the brokers that are being drained
(`draining`), so that they can become leaders again when the spec changes back, and the brokers that have their share of
replicas (`settled`). If a Cluster was deleted in the middle of a drain and made again, it has no such status. Then the
brokers that are drained at its first reconcile are assumed to have been drained for the earlier Cluster, and serve
again if they are wanted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ottla.operator.kafka import KafkaAdmin, Refusals
from ottla.operator.plan.scale import (
    ScalePlan,
    Scaling,
    absent,
    drain,
    only_on,
    spread,
    throttles,
    undrain,
    unthrottled,
)
from ottla.operator.plan.topic import DRAINED, THROTTLE_RATES, KafkaCluster
from ottla.operator.spec.cluster import Cluster
from ottla.protocol.errors import ErrorCode

THROTTLE_STAYS = "the throttle of replicas that have moved is still to be taken away"
_THROTTLED = (
    "the throttle of replicas that have moved stays while somebody throttles others by hand, or a broker is silent"
)
PASSING = (ErrorCode.unknown_topic_or_partition, ErrorCode.no_reassignment_in_progress)


def noted(cluster: Cluster, status: Mapping[str, Any]) -> Scaling:
    """The progress that a Cluster's status has. If it has none, the Cluster is new, and every broker counts as settled,
    because there are no replicas to share."""
    settled, reassignment = status.get("settled"), status.get("reassignment") or {}
    return Scaling(
        draining=frozenset(status.get("draining") or ()),
        settled=frozenset(cluster.broker_ids if settled is None else settled) & cluster.broker_ids,
        reason=reassignment.get("reason", ""),
        remaining=reassignment.get("remaining", 0),
        new=settled is None,
    )


async def scale(
    admin: KafkaAdmin, cluster: Cluster, before: Scaling, leaving: Collection[int], *, lacking: bool
) -> Scaling:
    """Takes the next step, and returns the progress. Raises Unreachable, KafkaError.

    Brokers are asked only if some are added or removed, if an earlier step isn't complete, or if partitions are
    `lacking` replicas although all wanted brokers are ready.
    """
    new = cluster.broker_ids - before.settled
    freed = before.draining - frozenset(leaving)
    if not leaving and not new and not freed and not before.reason and not before.new and not lacking:
        return before
    kafka = await admin.look(internal=True)
    if before.new:
        freed = _drained(kafka) - frozenset(leaving)
    if freed:
        stay = freed & cluster.broker_ids
        await make(await admin.move(undrain(kafka, stay)))
    missing = absent(kafka, cluster.broker_ids) - frozenset(leaving)
    plan = drain(kafka, leaving, cluster.broker_ids, missing)
    copies = drain(kafka, missing, cluster.broker_ids, missing)
    stays = _stays(kafka, copies, missing)
    # A refused drain isn't begun: brokers that can't be removed serve as before, unless they were drained already.
    draining = before.draining & frozenset(leaving) if plan.refusal else frozenset(leaving)
    if draining or freed:
        await _set_drained(admin, kafka, freed, draining & before.draining)
    so_far = Scaling(draining, before.settled)
    names = ", ".join(map(str, sorted(leaving)))
    if draining - before.draining:
        # The status notes the drain before the brokers are told: a drain that isn't noted would never be undone.
        return replace(so_far, drained=False, waits_for=f"draining broker {names}", needs_person=stays)
    if leaving and not plan.refusal:
        # A drain comes first: copies for missing brokers don't keep other brokers from being removed.
        await begin(admin, cluster, kafka, plan)
        if not plan.remaining:
            # If the brokers weren't set as drained before this look, they may have got new replicas since. Then only
            # the next look counts.
            looked_after = draining <= _drained(kafka)
            waits_for = f"removing broker {names}: no replica is left on it"
            return replace(so_far, drained=looked_after, waits_for=waits_for, needs_person=stays)
        reason = f"draining broker {names}"
        waits_for = f"draining broker {names} waits for {plan.waits_for}" if plan.waits_for else ""
        moves = replace(so_far, reason=reason, remaining=plan.remaining, waits_for=waits_for)
        return replace(moves, drained=False, needs_person=stays)
    if leaving:
        refused = f"scaling down waits: {plan.refusal}"
        so_far = replace(so_far, drained=False, needs_person=_joined(refused, stays))
    if copies.remaining:
        await begin(admin, cluster, kafka, copies)
        reason = f"copying the replicas of {_unwanted(missing)}"
        waits_for = f"{reason}, waits for {copies.waits_for}" if copies.waits_for else ""
        return replace(so_far, reason=reason, remaining=copies.remaining, waits_for=waits_for)
    if leaving:
        return so_far
    if new and cluster.rebalance != "None":
        names = ", ".join(map(str, sorted(new)))
        share = spread(kafka, new, cluster.broker_ids, only_new=cluster.rebalance == "New")
        await begin(admin, cluster, kafka, share)
        if share.waits_for:
            return replace(so_far, waits_for=f"spreading replicas waits for {share.waits_for}")
        if share.remaining:
            return replace(so_far, reason=f"spreading replicas onto broker {names}", remaining=share.remaining)
    settled = Scaling(draining, cluster.broker_ids, needs_person=stays)
    if not await unthrottle(admin, kafka):
        # With a `reason`, the next reconcile asks the brokers again.
        return replace(settled, reason=THROTTLE_STAYS, needs_person=_joined(_THROTTLED, stays))
    return settled


def _joined(*sentences: str) -> str:
    return "; ".join(filter(None, sentences))


def _stays(kafka: KafkaCluster, plan: ScalePlan, missing: Collection[int]) -> str:
    """Why replicas of missing brokers can't be copied, and what a person has to do; empty where all of them can be
    copied."""
    if plan.refusal:
        return f"the replicas of {_unwanted(missing)}, aren't copied: {plan.refusal}"
    if not (left := only_on(kafka, missing)):
        return ""
    (topic, index), more = left[0], f" (and {len(left) - 1} more partitions)" if len(left) > 1 else ""
    holders = kafka.topics[topic].partitions[index].in_sync
    return (
        f"partition {topic}-{index}{more} is only on {_unwanted(holders)}: "
        "raise the number of brokers of its pool until that broker comes back with its volume"
    )


def _unwanted(brokers: Collection[int]) -> str:
    return f"broker {', '.join(map(str, sorted(brokers)))}, which isn't there and isn't wanted"


async def begin(admin: KafkaAdmin, cluster: Cluster, kafka: KafkaCluster, plan: ScalePlan) -> None:
    """Requests the moves of a plan, under the Cluster's throttle. Raises Unreachable, KafkaError."""
    if not plan.moves:
        return
    if cluster.throttle_bytes_per_second is not None:
        rate = str(cluster.throttle_bytes_per_second)
        if any(kafka.settings.get(name) != rate for name in THROTTLE_RATES):
            await admin.configure_brokers(dict.fromkeys(THROTTLE_RATES, rate))
        await make(await admin.configure(throttles(kafka, plan.moves)))
    await make(await admin.move(plan.moves))


async def unthrottle(admin: KafkaAdmin, kafka: KafkaCluster) -> bool:
    """Resets the throttled replicas of each topic that has no owner and no partition that is being moved.

    Returns False, and resets nothing, while an administrator throttles replicas by hand.
    """
    steps = unthrottled(kafka)
    if steps and await admin.throttled_by_hand():
        return False
    await make(await admin.configure(steps))
    return True


async def _set_drained(
    admin: KafkaAdmin, kafka: KafkaCluster, freed: Collection[int], leaving: Collection[int]
) -> None:
    """Sets the drained brokers: adds the `leaving` ones and removes the `freed` ones. Brokers that an administrator
    drains stay drained."""
    present = _drained(kafka)
    wanted = present - set(freed) | set(leaving)
    if wanted == present:
        return
    if wanted:
        await admin.configure_brokers({DRAINED: ",".join(map(str, sorted(wanted)))})
    else:
        await admin.configure_brokers({}, [DRAINED])


def _drained(kafka: KafkaCluster) -> frozenset[int]:
    return frozenset(int(part) for part in kafka.settings.get(DRAINED, "").split(",") if part.strip())


async def make(refusals: Refusals) -> None:
    """Raises the first of the refusals, if any. A refusal is ignored if its reason is that the topic or the move
    doesn't exist any more."""
    for refusal in refusals.values():
        if refusal is not None and refusal.code not in PASSING:
            raise refusal
