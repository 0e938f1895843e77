"""The removal of users whose User is gone, by what the brokers can remove."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from ottla.operator.kafka import KafkaAdmin
from ottla.operator.plan.recorded_users import Given
from ottla.operator.plan.user import KafkaUsers
from ottla.operator.spec.user_rules import parse_user_rules
from ottla.operator.user_departures import UserDepartures
from ottla.operator.user_resources import UserResources
from tests.operator.kube_stand_in import KubeStandIn

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
RULES = parse_user_rules(
    {"apiVersion": "ottla.dev/v1alpha1", "metadata": {"namespace": "shop", "name": "main", "uid": "c"}}
)
NO_AUTHORIZER = KafkaUsers(None, {}, frozenset())
AUTHORIZER = KafkaUsers({}, {}, frozenset())


def test_a_user_that_leaves_while_no_authorizer_answers_is_removed_and_told_once_there_is_one() -> None:
    async def scene() -> None:
        kube = KubeStandIn()
        departures = UserDepartures(kube, UserResources(kube), lambda: 0.0)
        unasked = KafkaAdmin("127.0.0.1:1")  # a request to it would fail
        given = {"shop": Given("2026-01-01T00:00:00Z", password=True), "other": Given("2026-01-01T00:00:00Z")}
        await departures.record(await departures.recorded(RULES), given)
        recorded = await departures.recorded(RULES)
        assert await departures.remove(unasked, RULES, NO_AUTHORIZER, recorded, ["shop"], NOON)
        recorded = await departures.recorded(RULES)
        assert recorded.users == {**given, "shop": Given("2026-01-01T00:00:00Z", password=False)}
        assert kube.events == []
        assert await departures.remove(unasked, RULES, AUTHORIZER, recorded, ["shop"], NOON)
        assert (await departures.recorded(RULES)).users.keys() == {"other"}
        assert [event[1] for event in kube.events] == ["UserRemoved"]

    asyncio.run(scene())
