"""The warnings about clients without names."""

from __future__ import annotations

import pytest

from ottla.broker.anonymous import warnings
from ottla.settings.config import BrokerConfig

AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
TWO = """listeners=IN://:1,OUT://:2
listener.security.protocol.map=IN:SASL_PLAINTEXT,OUT:{}
inter.broker.listener.name=IN
"""


def warned(text: str) -> list[str]:
    return list(warnings(BrokerConfig.from_sources(f"node.id=0\n{text}")))


def test_clients_without_names_are_told_of() -> None:
    [sentence] = warned(AUTHORIZER + TWO.format("PLAINTEXT"))
    assert sentence.startswith("listener OUT: its clients are User:ANONYMOUS, which is no super user")
    assert sentence.endswith("they may only do what ACLs allow User:ANONYMOUS")
    [sentence] = warned(AUTHORIZER + TWO.format("SSL") + "allow.everyone.if.no.acl.found=true\n")
    assert sentence.endswith("what ACLs allow User:ANONYMOUS and what no ACL is about")


def test_brokers_without_names_cant_replicate() -> None:
    [sentence] = warned(AUTHORIZER)
    assert sentence.startswith("listener PLAINTEXT: brokers are User:ANONYMOUS to one another")
    assert "CLUSTER_ACTION" in sentence


@pytest.mark.parametrize(
    "text",
    [
        "",
        TWO.format("PLAINTEXT"),
        AUTHORIZER + TWO.format("PLAINTEXT") + "super.users=User:admin;User:ANONYMOUS\n",
        AUTHORIZER + TWO.format("SASL_SSL"),
        AUTHORIZER + TWO.format("SSL") + "listener.name.out.ssl.client.auth=required\n",
    ],
)
def test_nothing_is_said_where_nothing_follows(text: str) -> None:
    assert warned(text) == []
