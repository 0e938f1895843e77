"""ListTransactions: which ids a client sees, and what the audit log says of the others."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import list_transactions
from ottla.broker.authorization.rules import Rules
from ottla.broker.authorizer import AUDIT_LOGGER, AclAuthorizer
from ottla.metadata.image import Changed, Image
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.messages import read_request, write_request
from ottla.protocol.rights import AclOperation, ResourceType
from tests.unit.broker.api.stand_in import request_of


def test_ids_that_a_client_may_not_see_are_left_out_without_a_line_in_the_audit_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    binding = AclBinding(
        ResourceType.TRANSACTIONAL_ID,
        PatternType.LITERAL,
        "mine",
        "User:ANONYMOUS",
        "*",
        AclOperation.DESCRIBE,
        Permission.ALLOW,
    )
    image: Any = SimpleNamespace(acls={binding})
    authorizer = AclAuthorizer(Rules([], allow_if_none=False), Image)
    authorizer.changed(image, Changed(acls=frozenset({binding})))

    async def listed(wish: object) -> list[tuple[str, Any]]:
        state = SimpleNamespace(label="Ongoing")
        return [(name, SimpleNamespace(producer_id=7, state=state)) for name in ("mine", "others", "more of others")]

    broker: Any = SimpleNamespace(authorizer=authorizer, transactions=SimpleNamespace(listed=listed))
    fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": None}
    body = read_request(66, 2, write_request(66, 2, fields))
    with caplog.at_level(logging.INFO, AUDIT_LOGGER):
        answer = asyncio.run(list_transactions.handle(broker, request_of(66, 2), body))
    assert [state["transactional_id"] for state in answer["transaction_states"]] == ["mine"]
    assert not caplog.records
