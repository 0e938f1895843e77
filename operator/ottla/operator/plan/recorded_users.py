"""The record of the users to whom the operator has given passwords, ACLs or quotas, by their names in Kafka. Pure.

Kafka doesn't say who made an ACL. So the operator records a user before it gives the user anything, and forgets it
after it has taken everything away. By this record an operator that was away finds what a deleted User has left. Users
whom somebody else has made aren't in the record, and so they are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.operator.objects import Object, Ref
from ottla.operator.plan import names
from ottla.operator.plan.records import Record

_KEY = "users"
_PASSWORD, _NO_PASSWORD = "password", "-"


class Given(NamedTuple):
    """What the record says about a user: when its User was made, and whether the operator set a password."""

    created: str
    password: bool = False


@dataclass(frozen=True, slots=True)
class RecordedUsers:
    """The record of a Cluster as it was read: users by name."""

    record: Record
    users: Mapping[str, Given]


def read_users(cluster: Ref, cluster_uid: str, found: Object | None) -> RecordedUsers:
    """Reads the record of a Cluster from a ConfigMap."""
    record = Record(cluster, cluster_uid, names.recorded_users(cluster.name), _KEY, found)
    users = {}
    for line in filter(None, record.text.split("\n")):
        created, password, name = line.split(" ", 2)
        users[name] = Given(created, password == _PASSWORD)
    return RecordedUsers(record, users)


def users_record(before: RecordedUsers, users: Mapping[str, Given]) -> Object:
    """The ConfigMap with these users. A user takes about 45 bytes of its 1 MiB."""
    lines = [
        f"{given.created} {_PASSWORD if given.password else _NO_PASSWORD} {name}"
        for name, given in sorted(users.items())
    ]
    return before.record.with_text("\n".join(lines))
