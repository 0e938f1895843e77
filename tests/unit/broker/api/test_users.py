"""AlterUserScramCredentials and DescribeUserScramCredentials, as clients see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ottla.protocol.errors import ErrorCode
from ottla.protocol.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from ottla.security.scram import credential_of, salted_password
from tests.unit.broker.api.stand_in import BrokerStandIn, broker_stand_in

DESCRIBE, ALTER = 50, 51
NONE, TOO_WEAK, TWICE, MISSING = (
    ErrorCode.none,
    ErrorCode.unacceptable_credential,
    ErrorCode.duplicate_resource,
    ErrorCode.resource_not_found,
)


def play(folder: Path, act: Callable[[BrokerStandIn], Awaitable[None]]) -> None:
    async def main() -> None:
        async with broker_stand_in(folder) as broker, asyncio.timeout(30):
            await act(broker)

    asyncio.run(main())


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
    salted = salted_password(SCRAM_SHA_256, "secret", b"salt", 4096)
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": salted,
    }


async def alter(broker: BrokerStandIn, deletions: Any = (), upsertions: Any = ()) -> dict[str, ErrorCode]:
    deleted = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
    answer = await broker.ask(ALTER, 0, {"deletions": deleted, "upsertions": list(upsertions)})
    assert len({each.user for each in answer.results}) == len(answer.results)
    assert all((each.error_message is None) == (each.error_code == NONE) for each in answer.results)
    return {each.user: each.error_code for each in answer.results}


async def describe(broker: BrokerStandIn, *names: str) -> dict[str, Any]:
    answer = await broker.ask(DESCRIBE, 0, {"users": [{"name": name} for name in names] or None})
    assert answer.error_code == NONE
    return {
        each.user: each.error_code
        if each.error_code
        else {info.mechanism: info.iterations for info in each.credential_infos}
        for each in answer.results
    }


def test_users_are_set_described_and_deleted(tmp_path: Path) -> None:
    async def act(broker: BrokerStandIn) -> None:
        assert await describe(broker) == {}
        assert await alter(broker, upsertions=[upsertion("ä b/c"), upsertion("bob", 2, 16384)]) == {
            "ä b/c": NONE,
            "bob": NONE,
        }
        assert await alter(broker, upsertions=[upsertion("bob", 1, 5000)]) == {"bob": NONE}
        assert await describe(broker) == {"ä b/c": {1: 4096}, "bob": {1: 5000, 2: 16384}}
        assert await describe(broker, "bob", "eve") == {"bob": {1: 5000, 2: 16384}, "eve": MISSING}
        assert await describe(broker, "bob", "bob") == {"bob": TWICE}
        assert await alter(broker, deletions=[("bob", 2)]) == {"bob": NONE}
        assert await describe(broker, "bob") == {"bob": {1: 5000}}

    play(tmp_path, act)


def test_the_store_keeps_the_derived_keys_and_not_the_salted_password(tmp_path: Path) -> None:
    async def act(broker: BrokerStandIn) -> None:
        await alter(broker, upsertions=[upsertion("alice")])
        kept = broker.image.scram["alice", SCRAM_SHA_256]
        made = credential_of(SCRAM_SHA_256, upsertion("alice")["salted_password"], b"salt", 4096)
        assert (kept.stored_key, kept.server_key) == (made.stored_key, made.server_key)
        assert ("alice", SCRAM_SHA_512) not in broker.image.scram

    play(tmp_path, act)


def test_what_kafka_refuses_is_refused_and_the_others_are_changed(tmp_path: Path) -> None:
    async def act(broker: BrokerStandIn) -> None:
        await alter(broker, upsertions=[upsertion("known")])
        answers = await alter(
            broker,
            deletions=[("unknown", 1), ("known", 2), ("", 1), ("odd", 3), ("again", 1), ("twice", 9), ("both", 1)],
            upsertions=[
                upsertion("weak", 1, 4095),
                upsertion("slow", 2, 16385),
                upsertion("again"),
                upsertion("double"),
                upsertion("double", 2),
                upsertion("fine"),
            ],
        )
        assert answers == {
            "unknown": MISSING,
            "known": MISSING,
            "": TOO_WEAK,
            "odd": ErrorCode.unsupported_sasl_mechanism,
            "again": MISSING,  # the first refusal counts
            "twice": ErrorCode.unsupported_sasl_mechanism,
            "both": MISSING,
            "weak": TOO_WEAK,
            "slow": TOO_WEAK,
            "double": TWICE,
            "fine": NONE,
        }
        assert await describe(broker) == {"known": {1: 4096}, "fine": {1: 4096}}
        assert await alter(broker, deletions=[("known", 1)], upsertions=[upsertion("known")]) == {"known": TWICE}
        assert await describe(broker, "known") == {"known": {1: 4096}}

    play(tmp_path, act)


def test_a_change_that_some_broker_doesnt_know_in_time_is_answered_so(tmp_path: Path) -> None:
    async def act(broker: BrokerStandIn) -> None:
        async def behind(_deadline: float) -> frozenset[int]:
            return frozenset({3})

        broker.applied_revisions.everywhere_by = behind
        assert await alter(broker, upsertions=[upsertion("late")]) == {"late": ErrorCode.request_timed_out}
        assert await describe(broker, "late") == {"late": {1: 4096}}

    play(tmp_path, act)
