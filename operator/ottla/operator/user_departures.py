"""Keeps the record of users, and removes from Kafka the users whose User is gone, by the rules of
`plan/former_users.py`.

Before a user counts as one without a User, the Users are listed anew, and the definition of their kind is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from ottla.operator import kafka_users, records
from ottla.operator.definitions import definition
from ottla.operator.kafka import KafkaAdmin, said
from ottla.operator.objects import Ref
from ottla.operator.plan import names
from ottla.operator.plan.former_users import Departures
from ottla.operator.plan.recorded_users import Given, RecordedUsers, read_users, users_record
from ottla.operator.plan.user import KafkaUsers
from ottla.operator.records import Keeper
from ottla.operator.reports import Writer
from ottla.operator.spec.user_rules import UserRules
from ottla.operator.user_resources import UserResources
from ottla.operator.user_rights import remove_rights

logger = logging.getLogger(__name__)

DEFINITION = "users.ottla.dev"
FAILED_S = 15.0  # the pause after the brokers have refused to remove a user


class Kube(Keeper, Writer, Protocol):
    """The part of `ottla.operator.kube.Kube` that departures need."""


class UserDepartures:
    """Records and removes the users of all Clusters."""

    def __init__(self, kube: Kube, resources: UserResources, clock: Callable[[], float]) -> None:
        """`clock`: seconds of a monotonic clock."""
        self._kube = kube
        self._resources = resources
        self._clock = clock
        self._departures: dict[Ref, Departures] = {}

    def forget(self, cluster: Ref) -> None:
        """Drops everything about a Cluster that is gone."""
        self._departures.pop(cluster, None)

    async def recorded(self, rules: UserRules) -> RecordedUsers:
        """The record of a Cluster as it is now. Raises KubeError."""
        cluster = rules.cluster
        found = await self._kube.get("ConfigMap", cluster.namespace, names.recorded_users(cluster.name))
        return read_users(cluster, rules.uid, found)

    async def record(self, before: RecordedUsers, users: Mapping[str, Given]) -> RecordedUsers:
        """Writes the record unless it says this already, and returns it. Raises KubeError, NameTaken."""
        if users == before.users:
            return before
        consequence = "no User is followed"
        written = await records.write(self._kube, before.record, users_record(before, users), consequence)
        return read_users(before.record.cluster, before.record.cluster_uid, written)

    async def former(
        self, rules: UserRules, recorded: RecordedUsers, claimed: Callable[[], set[str]]
    ) -> tuple[list[str], float | None]:
        """The users to remove now, and in how many seconds to look again (None: nobody has to be waited for).
        `claimed`: the names that the present Users have. Raises KubeError."""
        if not recorded.users.keys() - claimed():
            self.forget(rules.cluster)
            return [], None
        await self._resources.up_to_date(self._clock(), within_s=0.0)
        defined = await definition(self._kube, DEFINITION)
        departures = self._departures.setdefault(rules.cluster, Departures())
        verdict = departures.judge(self._clock(), recorded.users, claimed(), defined)
        return list(verdict.due), verdict.look_again_s

    async def remove(
        self,
        admin: KafkaAdmin,
        rules: UserRules,
        kafka: KafkaUsers,
        recorded: RecordedUsers,
        due: list[str],
        now: datetime,
    ) -> bool:
        """Takes passwords, ACLs and quotas from users, and drops them from the record. Returns whether nothing was
        refused. Raises Unreachable, KubeError.

        While the brokers have no authorizer, nobody can see or delete ACLs, and they have an effect again with the next
        authorizer. So users stay in the record until then, without passwords."""
        dropped = [name for name in due if recorded.users[name].password and name in kafka.passwords]
        answers = await kafka_users.drop_passwords(admin, dropped)
        refused = {name: error for name, error in answers.items() if error is not None}
        refused |= await remove_rights(admin, due, kafka)
        done = set(due) - refused.keys()
        if kafka.acls is None:
            kept = {name: recorded.users[name]._replace(password=False) for name in done}
            told_of, users = refused.keys() & due, {**recorded.users, **kept}
        else:
            told_of, users = set(due), {name: given for name, given in recorded.users.items() if name not in done}
        for name in sorted(told_of):
            error = refused.get(name)
            told = ("UserRemoved", f"user '{name}' has no password, ACLs and quotas any more: its User is gone")
            if error is not None:
                told = ("UserNotRemoved", f"user '{name}' can't be removed, though its User is gone: {said(error)}")
            logger.info("%s: %s", rules.cluster, told[1])
            await self._kube.event(dict(rules.about), *told, now, warning=error is not None)
        await self.record(recorded, users)
        return not refused
