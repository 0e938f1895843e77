"""Identities can be read back from keys."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.metadata.identities import BY_ACL, BY_ENTITY, BY_PARTITION, BY_RESOURCE, BY_TOPIC_ID, ConfigResource
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType

names = st.text(max_size=8) | st.sampled_from(["<default>", "a/b", "%3C", "ä=,"])


@given(st.sampled_from(["topic", "broker", "group", "client-metrics"]), names)
def test_resources_with_settings(kind: str, name: str) -> None:
    resource = ConfigResource(kind, name)
    assert BY_RESOURCE.of(f"x/{BY_RESOURCE.text(resource)}") == resource


@given(st.dictionaries(st.sampled_from(["user", "client-id", "ip"]), st.none() | names, min_size=1))
def test_entities_with_quotas(entity: dict[str, str | None]) -> None:
    wanted = tuple(sorted(entity.items()))
    assert BY_ENTITY.of(f"x/{BY_ENTITY.text(wanted)}") == wanted


@given(
    st.builds(
        AclBinding,
        st.sampled_from(ResourceType),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        names,
        names,
        names,
        st.sampled_from(AclOperation),
        st.sampled_from(Permission),
    )
)
def test_access_control_lists(binding: AclBinding) -> None:
    assert BY_ACL.of(f"x/{BY_ACL.text(binding)}") == binding


def test_an_identity_that_is_written_in_another_way_is_refused() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        BY_PARTITION.of("x/AAAAAAAAQACAAAAAAAAAAg")
    with pytest.raises(ValueError, match="UUID"):
        BY_TOPIC_ID.of("x/AAAA")
