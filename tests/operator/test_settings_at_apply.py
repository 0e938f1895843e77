"""The CRDs' rules and the table of settings agree on values; the API server's own code evaluates the rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ottla.operator.spec.broker_config import is_reserved
from ottla.operator.spec.topic import OWNERSHIP
from ottla.settings.catalogue import BROKER, TOPIC
from ottla.settings.setting import InvalidSetting, Members, OneOf, Pattern, Range, Setting
from tests.peers.helm import objections

# A fresh machine first builds the program that validates.
pytestmark = pytest.mark.timeout(2400)

TABLES: dict[str, Mapping[str, Setting]] = {
    "Cluster": {name: setting for name, setting in BROKER.items() if not is_reserved(name)},
    "Topic": {name: setting for name, setting in TOPIC.items() if not setting.internal and name not in OWNERSHIP},
}
SPECS: dict[str, dict[str, Any]] = {
    "Cluster": {"brokers": {"replicas": 3, "storage": {"size": "1Gi"}}},
    "Topic": {"cluster": {"name": "main"}},
}
VALUES = ("", "0", "-1", "+1", "many", "1 day", "0.25", ".5e1", "1.", "TRUE", "no", "a,,b", "compact, delete", "9" * 20)
BESIDE_ANOTHER = "min.insync.replicas is greater than default.replication.factor"  # this rule compares two settings
NOBODY_MEANS = (" 7 ", "0.5f", "NaN", "tRuE", "compact,  delete", "compact, compact")


def values(setting: Setting) -> Iterator[str]:
    """Values on both sides of the setting's bounds, and some that no setting or every setting takes."""
    yield from VALUES
    if setting.default:
        yield setting.default
    for bits in (16, 32):
        yield str((1 << (bits - 1)) - 1)
        yield str(1 << (bits - 1))
    bounds = setting.bounds
    if isinstance(bounds, Range):
        for bound in (bounds.minimum, bounds.maximum, bounds.also):
            if bound is not None:
                yield from (str(bound - 1), str(bound), str(bound + 1))
    elif isinstance(bounds, OneOf | Members):
        for word in bounds.words:
            yield from (word, word.lower(), f"{word},")


def refused_by_table(setting: Setting, text: str) -> bool:
    try:
        setting.parse(text)
    except InvalidSetting:
        return True
    return False


def left_to_the_operator(setting: Setting) -> bool:
    return isinstance(setting.bounds, Pattern) or (
        isinstance(setting.bounds, Members) and len(setting.bounds.words) != 2
    )


@pytest.mark.parametrize("kind", TABLES)
def test_values_are_judged_as_by_the_settings_own_table(kind: str) -> None:
    """Each value is in a resource of its own, because a refusal names one setting."""
    cases = [(setting, text) for setting in TABLES[kind].values() for text in dict.fromkeys(values(setting))]
    resources = [_resource(kind, number, {setting.name: text}) for number, (setting, text) in enumerate(cases)]
    said: dict[str, str] = {}
    for line in objections("\n---\n".join(resources)):
        which, _, words = line.partition(": ")
        if BESIDE_ANOTHER not in words:
            said[which] = said.get(which, "") + words
    for number, (setting, text) in enumerate(cases):
        words = said.get(f"{kind} case-{number}", "")
        if not left_to_the_operator(setting) or words:
            assert bool(words) == refused_by_table(setting, text), (setting.name, text)
        if words:
            assert f"config: {setting.name} must be " in words or "type conversion error" in words, words


def test_what_nobody_means_is_refused_or_taken_as_kafka_would() -> None:
    """The rules never take a text that isn't a number for a number."""
    settings = list(TABLES["Topic"].values())
    cases = [(setting, text) for setting in settings for text in NOBODY_MEANS]
    resources = [_resource("Topic", number, {setting.name: text}) for number, (setting, text) in enumerate(cases)]
    said = "\n".join(objections("\n---\n".join(resources)))
    passed = [case for number, case in enumerate(cases) if f"Topic case-{number}: " not in said]
    assert not [case for case in passed if refused_by_table(*case) and not left_to_the_operator(case[0])]


def _resource(kind: str, number: int, config: dict[str, str]) -> str:
    """A resource as JSON: YAML parsers disagree on which texts are numbers."""
    metadata = {"name": f"case-{number}", "namespace": "shop"}
    spec = {**SPECS[kind], "config": config}
    return json.dumps({"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
