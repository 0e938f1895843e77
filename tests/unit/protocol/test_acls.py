"""Filters of bindings."""

from __future__ import annotations

import pytest

from ottla.protocol.acls import AclBinding, AclFilter, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType

LITERAL = AclBinding(
    ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:a", "*", AclOperation.READ, Permission.ALLOW
)
PREFIX = LITERAL._replace(pattern_type=PatternType.PREFIXED, name="ord")
EVERY = LITERAL._replace(name="*")
OTHER = LITERAL._replace(name="other", principal="User:b", host="1.2.3.4", permission=Permission.DENY)
GROUP = LITERAL._replace(resource_type=ResourceType.GROUP, operation=AclOperation.ALL)
ALL = [LITERAL, PREFIX, EVERY, OTHER, GROUP]


@pytest.mark.parametrize(
    ("chosen", "bindings"),
    [
        (AclFilter(), ALL),
        (AclFilter(ResourceType.TOPIC), [LITERAL, PREFIX, EVERY, OTHER]),
        (AclFilter(name="orders"), [LITERAL, GROUP]),
        (AclFilter(pattern_type=PatternType.PREFIXED), [PREFIX]),
        (AclFilter(pattern_type=PatternType.LITERAL, name="ord"), []),
        (AclFilter(pattern_type=PatternType.MATCH, name="orders"), [LITERAL, PREFIX, EVERY, GROUP]),
        (AclFilter(pattern_type=PatternType.MATCH, name="ord"), [PREFIX, EVERY]),
        (AclFilter(pattern_type=PatternType.MATCH), ALL),
        (AclFilter(name="*"), [EVERY]),
        (AclFilter(principal="User:b"), [OTHER]),
        (AclFilter(host="1.2.3.4"), [OTHER]),
        (AclFilter(host="*", permission=Permission.DENY), []),
        (AclFilter(operation=AclOperation.ALL), [GROUP]),
        (AclFilter(operation=AclOperation.WRITE), []),
    ],
)
def test_a_filter_chooses_bindings(chosen: AclFilter, bindings: list[AclBinding]) -> None:
    assert [binding for binding in ALL if chosen.matches(binding)] == bindings
