"""The changes that make a user's ACLs and quotas those of its User, and which of several Users has a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ottla.operator.objects import Ref
from ottla.operator.plan.user import KafkaUsers, by_principal, contest, no_rights, quota_changes, rights
from ottla.operator.spec.user import QUOTAS, Login, Rule, UserResource
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType

USER = UserResource(Ref("shop", "a"), "u-1", "2026-01-01T00:00:00Z", 1, Ref("shop", "main"), "a", Login.SCRAM)
NAMES = st.sampled_from(("a", "CN=a", "b", "*"))
RULES = st.builds(
    Rule,
    st.sampled_from(ResourceType),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from(("orders", "orders.", "*")),
    st.sampled_from(("*", "10.0.0.1")),
    st.sampled_from(AclOperation),
    st.sampled_from(Permission),
)
LIMITS = st.dictionaries(st.sampled_from(sorted(QUOTAS.values())), st.floats(0.5, 1e9))
ACLS = st.frozensets(st.builds(lambda rule, name: rule.of(f"User:{name}"), RULES, NAMES))
USERS = st.builds(KafkaUsers, st.none() | ACLS.map(by_principal), st.dictionaries(NAMES, LIMITS), st.frozensets(NAMES))


def applied(kafka: KafkaUsers, plan: Any) -> KafkaUsers:
    """What the brokers have after a plan, computed in the simplest way."""
    acls = None
    if kafka.acls is not None:
        everything = {each for some in kafka.acls.values() for each in some}
        acls = by_principal((everything | plan.created) - plan.deleted)
    quotas = {name: dict(limits) for name, limits in kafka.quotas.items()}
    if plan.quotas is not None:
        own = quotas.setdefault(plan.quotas.name, {})
        for key, limit in plan.quotas.limits:
            if limit is None:
                del own[key]
            else:
                own[key] = limit
    return replace(kafka, acls=acls, quotas={name: limits for name, limits in quotas.items() if limits})


def of_others(kafka: KafkaUsers, name: str) -> Any:
    acls = {principal: each for principal, each in (kafka.acls or {}).items() if principal != f"User:{name}"}
    return acls, {user: limits for user, limits in kafka.quotas.items() if user != name and limits}


@given(USERS, st.frozensets(RULES), LIMITS, NAMES)
def test_a_plan_makes_what_the_user_says_touches_no_other_and_is_done_at_once(
    kafka: KafkaUsers, rules: frozenset[Rule], limits: dict[str, float], name: str
) -> None:
    user = replace(USER, rules=rules, quotas=limits)
    plan = rights(user, name, kafka)
    after = applied(kafka, plan)
    assert after.quotas.get(name, {}) == limits
    assert of_others(after, name) == of_others(kafka, name)
    if kafka.acls is None:
        assert plan.lacks_authorizer == bool(rules)
        assert not plan.created | plan.deleted
    else:
        assert (after.acls or {}).get(f"User:{name}", frozenset()) == {rule.of(f"User:{name}") for rule in rules}
        assert not plan.created & plan.deleted
    assert not rights(user, name, after)


@given(USERS, NAMES)
def test_a_user_that_leaves_has_nothing_and_others_keep_what_they_have(kafka: KafkaUsers, name: str) -> None:
    after = applied(kafka, no_rights(name, kafka))
    assert f"User:{name}" not in (after.acls or {})
    assert name not in after.quotas
    assert of_others(after, name) == of_others(kafka, name)
    assert not no_rights(name, after)


def test_no_change_is_no_request() -> None:
    assert quota_changes("a", {"producer_byte_rate": 5.0}, {"producer_byte_rate": 5.0}) is None
    assert quota_changes("a", {}, {}) is None


def test_the_oldest_user_has_a_name_and_the_uid_decides_within_a_second() -> None:
    old = replace(USER, uid="u-9")
    same = replace(USER, uid="u-5")
    young = replace(USER, uid="u-1", created="2026-01-02T00:00:00Z")
    other = replace(USER, uid="u-0", created="2026-01-03T00:00:00Z")
    winners = contest({young: {"a"}, old: {"a"}, same: {"a"}, other: {"CN=a"}})
    assert [winners[each].uid for each in (young, old, same, other)] == ["u-5", "u-5", "u-5", "u-0"]


def test_a_name_at_any_listener_is_contested_and_who_yields_takes_no_name() -> None:
    first, second, third = (replace(USER, uid=f"u-{day}", created=f"2026-01-0{day}T00:00:00Z") for day in (1, 2, 3))
    winners = contest({third: {"c"}, second: {"b", "c"}, first: {"a", "b"}})
    assert [winners[each] for each in (first, second, third)] == [first, first, third]


def test_acls_are_by_their_principals() -> None:
    def acl(principal: str, operation: AclOperation) -> AclBinding:
        return AclBinding(ResourceType.TOPIC, PatternType.LITERAL, "t", principal, "*", operation, Permission.ALLOW)

    read, write = acl("User:a", AclOperation.READ), acl("User:a", AclOperation.WRITE)
    theirs = acl("User:CN=a", AclOperation.READ)
    assert by_principal([read, theirs, write]) == {"User:a": {read, write}, "User:CN=a": {theirs}}
