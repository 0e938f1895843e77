"""Decisions by bindings: tables of cases, and a comparison with a naive twin that looks at all bindings."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.authorization.rules import DEFAULT_ALLOW, DEFAULT_DENY, SUPER_USER, Rules
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
ALICE, HOME = "User:alice", "10.0.0.1"


def binding(
    operation: AclOperation = READ,
    name: str = "orders",
    *,
    permission: Permission = ALLOW,
    pattern: PatternType = LITERAL,
    kind: ResourceType = TOPIC,
    principal: str = ALICE,
    host: str = "*",
) -> AclBinding:
    return AclBinding(kind, pattern, name, principal, host, operation, permission)


def rules(*bindings: AclBinding, super_users: tuple[str, ...] = (), allow_if_none: bool = False) -> Rules:
    made = Rules(super_users, allow_if_none=allow_if_none)
    for each in bindings:
        made.index.add(each)
    return made


CASES = {
    "a literal name": ([binding()], READ, "orders", True),
    "another name": ([binding()], READ, "orders2", False),
    "a name that the pattern is longer than": ([binding()], READ, "order", False),
    "another operation": ([binding()], WRITE, "orders", False),
    "every name": ([binding(name="*")], READ, "orders", True),
    "a prefix": ([binding(name="ord", pattern=PREFIXED)], READ, "orders", True),
    "the prefix itself": ([binding(name="ord", pattern=PREFIXED)], READ, "ord", True),
    "a literal isn't a prefix": ([binding(name="ord")], READ, "orders", False),
    "a prefix of * is no wildcard": ([binding(name="*", pattern=PREFIXED)], READ, "orders", False),
    "another type": ([binding(kind=GROUP)], READ, "orders", False),
    "everybody": ([binding(principal="User:*")], READ, "orders", True),
    "another user": ([binding(principal="User:bob")], READ, "orders", False),
    "another case": ([binding(principal="User:Alice")], READ, "orders", False),
    "every kind of principal isn't a user": ([binding(principal="Role:*")], READ, "orders", False),
    "the client's host": ([binding(host=HOME)], READ, "orders", True),
    "another host": ([binding(host="10.0.0.2")], READ, "orders", False),
    "a network never matches": ([binding(host="10.0.0.0/8")], READ, "orders", False),
    "all operations": ([binding(ALL)], WRITE, "orders", True),
    "read implies describe": ([binding(READ)], DESCRIBE, "orders", True),
    "write implies describe": ([binding(WRITE)], DESCRIBE, "orders", True),
    "delete implies describe": ([binding(AclOperation.DELETE)], DESCRIBE, "orders", True),
    "alter implies describe": ([binding(AclOperation.ALTER)], DESCRIBE, "orders", True),
    "create doesn't imply describe": ([binding(AclOperation.CREATE)], DESCRIBE, "orders", False),
    "describe doesn't imply read": ([binding(DESCRIBE)], READ, "orders", False),
    "alter configs implies describe configs": (
        [binding(AclOperation.ALTER_CONFIGS)],
        AclOperation.DESCRIBE_CONFIGS,
        "orders",
        True,
    ),
    "alter doesn't imply describe configs": (
        [binding(AclOperation.ALTER)],
        AclOperation.DESCRIBE_CONFIGS,
        "orders",
        False,
    ),
    "a denial beats every permission": ([binding(), binding(ALL, "*", permission=DENY)], READ, "orders", False),
    "a denial of a prefix": (
        [binding(), binding(READ, "o", pattern=PREFIXED, permission=DENY)],
        READ,
        "orders",
        False,
    ),
    "a denial of read leaves describe": ([binding(), binding(permission=DENY)], DESCRIBE, "orders", True),
    "a denial of another host": ([binding(), binding(permission=DENY, host="10.0.0.2")], READ, "orders", True),
    "a denial of everybody": ([binding(), binding(permission=DENY, principal="User:*")], READ, "orders", False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_decision(case: str) -> None:
    bindings, operation, name, allowed = CASES[case]
    assert rules(*bindings).decide(ALICE, HOME, operation, TOPIC, name).allowed is allowed


def test_a_super_user_may_do_what_is_denied() -> None:
    made = rules(binding(ALL, "*", permission=DENY, principal="User:*"), super_users=(ALICE,))
    assert made.decide(ALICE, HOME, READ, TOPIC, "orders") is SUPER_USER
    assert not made.decide("User:bob", HOME, READ, TOPIC, "orders").allowed


def test_a_resource_without_bindings_is_left_to_the_setting() -> None:
    assert rules().decide(ALICE, HOME, READ, TOPIC, "orders") is DEFAULT_DENY
    assert rules(allow_if_none=True).decide(ALICE, HOME, READ, TOPIC, "orders") is DEFAULT_ALLOW


@pytest.mark.parametrize(
    "other",
    [
        binding(principal="User:bob"),
        binding(WRITE, host="1.2.3.4"),
        binding(name="*", principal="User:bob"),
        binding(name="ord", pattern=PREFIXED, principal="User:bob"),
    ],
)
def test_a_binding_of_anybody_takes_a_resource_out_of_the_setting(other: AclBinding) -> None:
    assert rules(other, allow_if_none=True).decide(ALICE, HOME, READ, TOPIC, "orders") is DEFAULT_DENY


def test_the_audit_log_names_kafkas_rule() -> None:
    made = rules(binding(), binding(ALL, "*", principal="User:*"))
    assert str(made.decide(ALICE, HOME, READ, TOPIC, "orders")) == (
        "MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=*, patternType=LITERAL, principal=User:*, "
        "host=*, operation=ALL, permissionType=ALLOW))"
    )
    assert str(made.decide(ALICE, HOME, READ, GROUP, "g")) == "DefaultDeny"


def test_the_operations_that_a_client_may_do_on_a_resource() -> None:
    assert rules(binding(READ)).authorized_operations(ALICE, HOME, TOPIC, "orders") == 264  # as Kafka answers
    assert rules().authorized_operations(ALICE, HOME, TOPIC, "orders") == 0
    every = rules(super_users=(ALICE,))
    assert every.authorized_operations(ALICE, HOME, TOPIC, "t") == sum(1 << n for n in (3, 4, 5, 6, 7, 8, 10, 11))
    assert every.authorized_operations(ALICE, HOME, GROUP, "g") == sum(1 << n for n in (3, 6, 8, 10, 11))
    assert every.authorized_operations(ALICE, HOME, CLUSTER, "c") == sum(1 << n for n in (5, 7, 8, 9, 10, 11, 12))


SOME = {
    "nothing": ([], False),
    "one topic": ([binding(WRITE)], True),
    "a prefix": ([binding(WRITE, "o", pattern=PREFIXED)], True),
    "every topic": ([binding(WRITE, "*")], True),
    "only reading": ([binding(READ)], False),
    "all operations": ([binding(ALL)], True),
    "another host": ([binding(WRITE, host="1.2.3.4")], False),
    "another user": ([binding(WRITE, principal="User:bob")], False),
    "the only topic is denied": ([binding(WRITE), binding(WRITE, permission=DENY)], False),
    "every topic is denied": ([binding(WRITE), binding(WRITE, "*", permission=DENY)], False),
    "a prefix of the only topic is denied": (
        [binding(WRITE), binding(WRITE, "or", pattern=PREFIXED, permission=DENY)],
        False,
    ),
    "one topic of a prefix is denied": (
        [binding(WRITE, "or", pattern=PREFIXED), binding(WRITE, permission=DENY)],
        True,
    ),
    "every topic is allowed, one is denied": ([binding(WRITE, "*"), binding(WRITE, permission=DENY)], True),
    "another topic is denied": ([binding(WRITE), binding(WRITE, "x", permission=DENY)], True),
}


@pytest.mark.parametrize("case", SOME)
def test_a_right_to_some_topic(case: str) -> None:
    bindings, allowed = SOME[case]
    assert rules(*bindings).allows_on_some(ALICE, HOME, WRITE, TOPIC) is allowed


def test_super_users_and_everybody_have_a_right_to_some_topic() -> None:
    denied = binding(ALL, "*", permission=DENY, principal="User:*")
    assert rules(denied, super_users=(ALICE,)).allows_on_some(ALICE, HOME, WRITE, TOPIC)
    assert rules(allow_if_none=True).allows_on_some(ALICE, HOME, WRITE, TOPIC)


NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "ba"])
BINDINGS = st.builds(
    AclBinding,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from([LITERAL, PREFIXED]),
    NAMES,
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from(["*", HOME, "10.0.0.2"]),
    st.sampled_from([READ, WRITE, DESCRIBE, ALL, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS]),
    st.sampled_from(list(Permission)),
)


def naive(
    bindings: set[AclBinding],
    allow_if_none: bool,
    user: str,
    host: str,
    op: AclOperation,
    kind: ResourceType,
    name: str,
) -> bool:
    """The decision as the rules state it, by a look at every binding."""
    on_resource = [
        b
        for b in bindings
        if b.resource_type == kind and (b.name in (name, "*") if b.pattern_type is LITERAL else name.startswith(b.name))
    ]
    if not on_resource:
        return allow_if_none
    mine = [b for b in on_resource if b.principal in (user, "User:*") and b.host in (host, "*")]
    if any(b.permission is DENY and b.operation in (op, ALL) for b in mine):
        return False
    include = {op, ALL}
    if op is DESCRIBE:
        include |= {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER}
    if op is AclOperation.DESCRIBE_CONFIGS:
        include |= {AclOperation.ALTER_CONFIGS}
    return any(b.permission is ALLOW and b.operation in include for b in mine)


@given(
    st.lists(st.tuples(st.booleans(), BINDINGS), max_size=12),
    st.booleans(),
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from([HOME, "10.0.0.3"]),
    st.sampled_from([READ, WRITE, DESCRIBE, AclOperation.DESCRIBE_CONFIGS]),
    st.sampled_from([TOPIC, GROUP]),
    NAMES,
)
def test_decisions_are_those_of_a_naive_twin(
    changes: list[tuple[bool, AclBinding]],
    allow_if_none: bool,
    user: str,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
) -> None:
    """Also after bindings were removed, some of them never added."""
    made = Rules((), allow_if_none=allow_if_none)
    present: set[AclBinding] = set()
    for adds, each in changes:
        if adds:
            made.index.add(each)
            present.add(each)
        else:
            made.index.remove(each)
            present.discard(each)
    assert set(made.index) == present
    assert len(made.index) == len(present)
    decided = made.decide(user, host, operation, kind, name)
    assert decided.allowed is naive(present, allow_if_none, user, host, operation, kind, name)


def test_a_decision_among_ten_thousand_bindings_takes_microseconds() -> None:
    """The bindings are on 2,000 topics, 3,000 prefixes and, by 5,000 users, on every topic."""
    made = rules(
        *(binding(name=f"topic-{number}") for number in range(2_000)),
        *(binding(name=f"team-{number}-", pattern=PREFIXED) for number in range(3_000)),
        *(binding(name="*", principal=f"User:{number}") for number in range(5_000)),
    )
    assert len(made.index) == 10_000
    names = [f"topic-{number}" for number in range(500)] + [f"team-{number}-x" for number in range(500)]
    began = time.perf_counter()
    assert all(made.decide(ALICE, HOME, READ, TOPIC, name).allowed for name in names)
    assert time.perf_counter() - began < 0.2  # 200 µs each, twenty times what it takes
