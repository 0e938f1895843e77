"""Brings the users of a cluster to what their User resources say: all of them in one sweep.

A sweep handles all Users of a cluster, not one. So a single look at the brokers serves thousands of users, changes are
made in batches, and the sweep can find conflicts between Users, and users that have lost their resources.

A sweep observes (the resources, the Cluster, the brokers), records the users to whom it will give something, changes
ACLs and quotas, looks after Secrets and passwords (`user_access.py`), removes former users, and writes the statuses
that differ. Each step may be repeated safely, as happens when the operator ends in the middle of a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, Unpack

from ottla.operator import kafka_users
from ottla.operator.kafka import KafkaAdmin, said
from ottla.operator.namespaces import selected_namespaces
from ottla.operator.objects import Object, Ref
from ottla.operator.plan.recorded_users import Given, RecordedUsers
from ottla.operator.plan.user import KafkaUsers, contest
from ottla.operator.plan.user_status import Outcome, user_status
from ottla.operator.queue import Result
from ottla.operator.reports import News
from ottla.operator.spec.user import Login, UserResource
from ottla.operator.spec.user_rules import UserRules, parse_user_rules
from ottla.operator.sweeps import Around, Kube, Sweeps
from ottla.operator.user_access import UserAccess
from ottla.operator.user_departures import FAILED_S, UserDepartures
from ottla.operator.user_resources import UserResources
from ottla.operator.user_rights import Changes, change_rights
from ottla.protocol.errors import ErrorCode

CHANGES_MAX = 500  # the most users whose rights, and the most whose Secrets, one sweep changes
AT_ONCE_S = 0.2
PASSING_S = 5.0
WAITING_S = 15.0  # the pause while something isn't there that the Cluster or a person makes
PASSING = frozenset({ErrorCode.request_timed_out, ErrorCode.not_controller, ErrorCode.broker_not_available})


class _Begun(NamedTuple):
    """What a sweep begins with: the Cluster's rules, and the users to whom it has given something."""

    rules: UserRules
    recorded: RecordedUsers


@dataclass(slots=True)
class _Sweep:
    """The findings and changes of one sweep so far."""

    rules: UserRules
    admin: KafkaAdmin
    now: datetime
    selected: frozenset[str] | None  # the namespaces that have the Cluster's labels; None: they can't be listed
    outcomes: dict[UserResource, Outcome] = field(default_factory=dict)
    news: list[News] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)


class UserReconciler(Sweeps[UserResource, Outcome, _Begun]):
    """Reconciles the Users of one cluster at a time: its keys are those of Clusters."""

    def __init__(self, kube: Kube, resources: UserResources, **around: Unpack[Around]) -> None:
        super().__init__(kube, resources, user_status, **around)
        self._resources = resources
        self._access = UserAccess(kube, self._clock)
        self._departures = UserDepartures(kube, resources, self._clock)

    async def _begun(self, found: Object, mine: Sequence[UserResource]) -> _Begun | None:
        rules = parse_user_rules(found)
        recorded = await self._departures.recorded(rules)
        return _Begun(rules, recorded) if mine or recorded.users else None

    def _refused(self, resource: UserResource, reason: str, message: str) -> Outcome:
        return Outcome(False, reason, message)

    def _waits(self, resource: UserResource, reason: str, message: str, *, expected: bool) -> Outcome:
        before = resource.status
        return Outcome(False, reason, message, before.get("username", ""), before.get("secret", ""), expected=expected)

    def _let_go(self, key: Ref) -> None:
        super()._let_go(key)
        self._departures.forget(key)
        self._access.forget(key)

    async def _swept(self, begun: _Begun, admin: KafkaAdmin, mine: list[UserResource], *, starting: bool) -> Result:
        rules = begun.rules
        sweep = _Sweep(rules, admin, self._utc(), await selected_namespaces(self._kube, rules.namespaces))
        await self._sweep(sweep, mine, begun.recorded)
        await self._reports.events(sweep.news, sweep.now)
        await self._tell(sweep.outcomes)
        return Result(min(sweep.pauses, default=None))

    async def _sweep(self, sweep: _Sweep, mine: list[UserResource], recorded: RecordedUsers) -> None:
        """Does all of a sweep, except writing Events and statuses."""
        rules, admin = sweep.rules, sweep.admin
        kafka = await kafka_users.look(admin)
        users = self._winners(sweep, self._named(sweep, mine))
        recorded = await self._departures.record(recorded, {**recorded.users, **_given(users, recorded)})
        changes = await change_rights(admin, users, kafka, CHANGES_MAX)
        granted = await self._access.grant(users, rules, kafka, admin, CHANGES_MAX, sweep.now)
        for user, outcome in granted.outcomes.items():
            if user not in changes.left:
                sweep.outcomes[user] = _concluded(user, users[user], outcome, changes, rules)
        recorded = await self._drop_passwords(admin, users, kafka, recorded)
        await self._remove_former(sweep, kafka, recorded)
        sweep.news += [*changes.news, *granted.news]
        if changes.left or granted.left:
            sweep.pauses.append(AT_ONCE_S)
        if any(outcome.ready is None for outcome in sweep.outcomes.values()):
            sweep.pauses.append(PASSING_S)
        if any(outcome.ready is False for outcome in granted.outcomes.values()):
            sweep.pauses.append(WAITING_S)

    @staticmethod
    def _named(sweep: _Sweep, mine: list[UserResource]) -> dict[UserResource, str]:
        """The names in Kafka of the Users that may have one. The other Users can't claim a name, and are told why."""
        rules = sweep.rules
        found = {}
        for user in mine:
            name, namespace = rules.name_of(user), user.ref.namespace
            if not rules.namespaces.has(namespace, sweep.selected or ()):
                message = (
                    f"the Cluster {rules.cluster} takes no Users from the namespace {namespace}: change its "
                    "users.allowedNamespaces, or move the User"
                )
                sweep.outcomes[user] = Outcome(False, "NamespaceNotAllowed", message)
            elif name is None:
                message = (
                    f"no rule of the Cluster's ssl.principal.mapping.rules matches {user.certified_name}, so the "
                    "brokers refuse such certificates: correct the rules, or give the User another name"
                )
                sweep.outcomes[user] = Outcome(False, "NameNotMapped", message)
            elif rules.is_reserved(user):
                message = (
                    f"'{name}' would be a super user at a listener of the Cluster {rules.cluster}: only a User in the "
                    "Cluster's own namespace may be one, so choose another name"
                )
                sweep.outcomes[user] = Outcome(False, "NameNotAllowed", message)
            else:
                found[user] = name
        return found

    @staticmethod
    def _winners(sweep: _Sweep, named: Mapping[UserResource, str]) -> dict[UserResource, str]:
        """The Users to follow, with their names in Kafka. The others are told why they aren't followed."""
        users = {}
        winners = contest({user: sweep.rules.names_of(user) for user in named})
        for user, name in named.items():
            winner = winners[user]
            if winner is not user:
                message = f"user '{name}' follows the older User {winner.ref}: delete one of the two, or rename one"
                sweep.outcomes[user] = Outcome(False, "ResourceConflict", message)
            elif user.refusal:
                sweep.outcomes[user] = Outcome(False, "InvalidSpec", user.refusal)
            elif not user.deleting:
                users[user] = name
        return users

    async def _drop_passwords(
        self, admin: KafkaAdmin, users: Mapping[UserResource, str], kafka: KafkaUsers, recorded: RecordedUsers
    ) -> RecordedUsers:
        """Removes the passwords that the operator has set for users who log in otherwise now. Returns the record."""
        others = [
            name for user, name in users.items() if user.login is not Login.SCRAM and recorded.users[name].password
        ]
        answers = await kafka_users.drop_passwords(admin, [name for name in others if name in kafka.passwords])
        gone = {name: recorded.users[name]._replace(password=False) for name in others if answers.get(name) is None}
        return await self._departures.record(recorded, {**recorded.users, **gone})

    async def _remove_former(self, sweep: _Sweep, kafka: KafkaUsers, recorded: RecordedUsers) -> None:
        """Removes users that have lost their User. It removes nobody while the Cluster's namespaces can't be listed, or
        while brokers run with an earlier spec and may give certificates other names: the new names have their rights
        already, and the earlier ones lose theirs once every broker has the new spec."""
        rules, selected = sweep.rules, sweep.selected
        if selected is None or not rules.in_force:
            return

        def claimed() -> set[str]:
            return {name for user in self._resources.of(rules.cluster) for name in rules.claims_of(user, selected)}

        due, look_again_s = await self._departures.former(rules, recorded, claimed)
        if look_again_s is not None:
            sweep.pauses.append(look_again_s)
        if due:
            done = await self._departures.remove(sweep.admin, rules, kafka, recorded, due, sweep.now)
            if not done:
                sweep.pauses.append(FAILED_S)


def _given(users: Mapping[UserResource, str], recorded: RecordedUsers) -> dict[str, Given]:
    """What the record has to say about users before they are given anything."""
    found = {}
    for user, name in users.items():
        before = recorded.users.get(name)
        found[name] = Given(user.created, user.login is Login.SCRAM or (before is not None and before.password))
    return found


def _concluded(user: UserResource, name: str, outcome: Outcome, changes: Changes, rules: UserRules) -> Outcome:
    """A user's outcome, by what became of its Secret and of its rights. A Secret that isn't there is told first."""
    outcome = replace(outcome, username=name)
    error = changes.refused.get(user)
    if outcome.ready is not True:
        return outcome
    if error is not None:
        ready = None if error.code in PASSING else False
        return replace(
            outcome, ready=ready, reason="RightsRefused", message=f"the brokers refuse its rights: {said(error)}"
        )
    if user in changes.lacking_authorizer and rules.authorizer_wanted:
        message = "the brokers have no authorizer yet: they get it when the Cluster's links are encrypted"
        return replace(outcome, ready=False, reason="AuthorizerComes", message=message, expected=True)
    if user in changes.lacking_authorizer:
        message = (
            "the brokers have no authorizer, so everybody may do everything: set the Cluster's spec.authorization, or "
            "take authorization out of this User"
        )
        return replace(outcome, ready=False, reason="NoAuthorizer", message=message)
    return outcome
