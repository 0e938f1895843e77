"""The requests about settings that the operator and the command line share, and the errors in the answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.net.admin import (
    ALTER_CONFIGS,
    BROKER,
    DESCRIBE_CONFIGS,
    TOPIC,
    refusal,
    settings_altered,
    settings_wanted,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_request, write_request


def sent(api: tuple[int, int], message: dict[str, Any]) -> Any:
    """The request as a broker decodes it."""
    return read_request(*api, write_request(*api, message))


def test_settings_are_asked_for_by_their_names_or_all() -> None:
    some = sent(DESCRIBE_CONFIGS, settings_wanted(BROKER, ["1", "2"], ["a", "b"]))
    every = sent(DESCRIBE_CONFIGS, settings_wanted(TOPIC, ["t"]))
    assert [(each.resource_type, each.resource_name) for each in some.resources] == [(BROKER, "1"), (BROKER, "2")]
    assert {each.configuration_keys for each in some.resources} == {("a", "b")}
    assert [(each.resource_name, each.configuration_keys) for each in every.resources] == [("t", None)]


def test_edits_keep_their_resource_and_their_order() -> None:
    request = sent(ALTER_CONFIGS, settings_altered(BROKER, {"": [("a", 0, "1"), ("b", 1, None)], "3": []}))
    told = {
        each.resource_name: [(edit.name, edit.config_operation, edit.value) for edit in each.configs]
        for each in request.resources
    }
    assert told == {"": [("a", 0, "1"), ("b", 1, None)], "3": []}
    assert not request.validate_only


def test_a_refusal_has_the_brokers_sentence() -> None:
    assert refusal(SimpleNamespace(error_code=ErrorCode.none, error_message=None)) is None
    refused = refusal(SimpleNamespace(error_code=ErrorCode.invalid_config, error_message="too small"))
    silent = refusal(SimpleNamespace(error_code=ErrorCode.invalid_config, error_message=None))
    assert refused is not None
    assert silent is not None
    assert (refused.code, refused.message, silent.message) == (ErrorCode.invalid_config, "too small", "")
