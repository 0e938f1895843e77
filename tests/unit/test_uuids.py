"""UUIDs are written and read as Kafka's tools do."""

from __future__ import annotations

from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.uuids import uuid_from_text, uuid_text


@given(st.uuids())
def test_uuids_as_kafka_writes_them(value: UUID) -> None:
    text = uuid_text(value)
    assert len(text) == 22
    assert uuid_from_text(text) == value


def test_kafkas_own_example_of_a_uuid() -> None:
    assert uuid_text(UUID(int=0)) == "AAAAAAAAAAAAAAAAAAAAAA"
    with pytest.raises(ValueError, match="UUID"):
        uuid_from_text("abcd")


def test_a_known_uuid() -> None:
    assert uuid_text(uuid_from_text("gvvQSa46Q0eXORI28z83Yw")) == "gvvQSa46Q0eXORI28z83Yw"
