"""Rules from distinguished names to users, beside outcomes of Apache Kafka 4.3.1's SslPrincipalMapper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.security.principal_mapping import InvalidRules, MappingRules, NoRuleMatches

RECORDED = json.loads((Path(__file__).parent / "kafka_mappings.json").read_text())
NAME = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


def outcome(rules: str, name: str) -> str:
    """`=` and the user's name, `none` if no rule applies, `bad` if the rules can't be read."""
    try:
        return "=" + MappingRules(rules).user_name(name)
    except NoRuleMatches:
        return "none"
    except InvalidRules:
        return "bad"


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['rules']} {case['name']}")
def test_as_apache_kafka(case: dict[str, str]) -> None:
    assert outcome(case["rules"], case["name"]) == case["outcome"]


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", f"={NAME}"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "=Duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/L", "=duke@serviceusers"),
        ("RULE:^cn=(.*?),.*$/$1/, RULE:^.*O=(.*?),.*$/$1/U", "=ORG"),
        ("RULE:CN=Duke/x/", "none"),
        ("RULE:.*/x/", "=xx"),  # as Java's replaceAll, which also replaces the empty match at the end
        ("RULE:CN=(.*?),.*/a\\$$1/", "=a$Duke"),
    ],
)
def test_names_of_users(rules: str, user: str) -> None:
    assert outcome(rules, NAME) == user


@pytest.mark.parametrize(
    "rules", ["RULE:(/x/", "RULE:a/b", "RULE:CN=.*/$1/", r"RULE:\p{Lu}.*/x/", "RULE:[a&&b]/x/", "RULE:a/$/", "nothing"]
)
def test_rules_that_are_refused(rules: str) -> None:
    with pytest.raises(InvalidRules):
        MappingRules(rules)


@given(st.text(alphabet="RULE:DEFAULT/,$1\\().*?[]^CN=ab<>P{}+|&LU ", max_size=60), st.text(max_size=20))
def test_any_text_is_rules_or_refused(rules: str, name: str) -> None:
    outcome(rules, name)
