"""Gives users the ACLs and quotas of their Users, and takes all others from them: many users with few requests.

ACLs are created before others are deleted, so a user whose rules are only written in another way never lacks a right. A
refusal of one ACL doesn't stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.operator import kafka_users
from ottla.operator.kafka import KafkaAdmin
from ottla.operator.plan.user import KafkaUsers, Rights, no_rights, rights
from ottla.operator.reports import News
from ottla.operator.spec.user import UserResource
from ottla.protocol.acls import AclBinding
from ottla.protocol.errors import KafkaError
from ottla.wording import counted


@dataclass(slots=True)
class Changes:
    """What became of the users' rights."""

    refused: dict[UserResource, KafkaError] = field(default_factory=dict)  # the brokers' first refusal
    lacking_authorizer: set[UserResource] = field(default_factory=set)
    left: set[UserResource] = field(default_factory=set)  # users whose rights the next sweep changes
    news: list[News] = field(default_factory=list)


async def change_rights(
    admin: KafkaAdmin, users: Mapping[UserResource, str], kafka: KafkaUsers, changes_max: int
) -> Changes:
    """Changes the rights of at most `changes_max` users. `users`: the User of each name in Kafka. Raises
    Unreachable."""
    plans = {user: rights(user, name, kafka) for user, name in users.items()}
    changing = [user for user, plan in plans.items() if plan]
    changes = Changes(
        lacking_authorizer={user for user, plan in plans.items() if plan.lacks_authorizer},
        left=set(changing[changes_max:]),
    )
    made = {users[user]: plans[user] for user in changing[:changes_max]}
    refused = await carry_out(admin, made)
    for user in changing[:changes_max]:
        error, name = refused.get(users[user]), users[user]
        if error is not None:
            changes.refused[user] = error
        else:
            changes.news.append(News(user, "RightsChanged", f"user '{name}': {_in_words(plans[user])}"))
    return changes


async def remove_rights(admin: KafkaAdmin, names: list[str], kafka: KafkaUsers) -> dict[str, KafkaError]:
    """Takes all ACLs and quotas from users. Returns the brokers' refusals, by name. Raises Unreachable."""
    return await carry_out(admin, {name: plan for name in names if (plan := no_rights(name, kafka))})


async def carry_out(admin: KafkaAdmin, plans: Mapping[str, Rights]) -> dict[str, KafkaError]:
    """Makes the changes of several users, by name. Returns the brokers' first refusal of each user's changes."""
    owners = {binding: name for name, plan in plans.items() for binding in (*plan.created, *plan.deleted)}
    answers: list[Mapping[AclBinding, KafkaError | None]] = [
        await kafka_users.create_acls(admin, [each for plan in plans.values() for each in plan.created])
    ]
    failed = {owners[binding] for binding, error in answers[0].items() if error is not None}
    kept = [each for name, plan in plans.items() if name not in failed for each in plan.deleted]
    answers.append(await kafka_users.delete_acls(admin, kept))
    refused: dict[str, KafkaError] = {}
    for answer in answers:
        for binding, error in answer.items():
            if error is not None:
                refused.setdefault(owners[binding], error)
    quotas = await kafka_users.set_quotas(admin, [plan.quotas for plan in plans.values() if plan.quotas])
    return {name: error for name, error in quotas.items() if error is not None} | refused


def _in_words(plan: Rights) -> str:
    parts = []
    if plan.created:
        parts.append(f"{counted(len(plan.created), 'ACL')} created")
    if plan.deleted:
        parts.append(f"{counted(len(plan.deleted), 'ACL')} deleted")
    if plan.quotas:
        limits = (f"{key} removed" if limit is None else f"{key}={limit:g}" for key, limit in plan.quotas.limits)
        parts.append(", ".join(limits))
    return "; ".join(parts)
