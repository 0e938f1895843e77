"""The table of flexible versions is that of kio's schemas, which are made from Kafka's message definitions."""

from __future__ import annotations

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map

from ottla.protocol.flexible import is_flexible


@pytest.mark.parametrize("api_key", api_key_map)
def test_the_table_is_that_of_the_schemas(api_key: int) -> None:
    versions = schema_name_map[api_key_map[api_key]]
    schemas = {version: bool(load_request_schema(api_key, version).__flexible__) for version in versions}
    assert {version: is_flexible(api_key, version) for version in versions} == schemas


def test_an_unknown_api_has_no_flexible_version() -> None:
    assert not is_flexible(32_000, 0)
