"""The requests about delegation tokens, as clients see them, and the deletion of expired tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from ottla.broker.api import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from ottla.broker.login.token_service import TokenService
from ottla.broker.request import Request
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_request, read_response, write_request, write_response
from ottla.protocol.rights import AclOperation, ResourceType
from ottla.settings.config import BrokerConfig
from tests.unit.broker.api.stand_in import BrokerStandIn, broker_stand_in
from tests.unit.waiting import until

CREATE, RENEW, EXPIRE, DESCRIBE = 38, 39, 40, 41
HANDLERS: dict[int, Any] = {
    module.API.key: module.handle
    for module in (
        create_delegation_token,
        renew_delegation_token,
        expire_delegation_token,
        describe_delegation_token,
    )
}
SETTINGS = """
node.id=0
log.dirs=/x
listeners=IN://127.0.0.1:1,OUT://127.0.0.1:2
listener.security.protocol.map=IN:SASL_PLAINTEXT,OUT:PLAINTEXT
inter.broker.listener.name=OUT
sasl.enabled.mechanisms=SCRAM-SHA-256
delegation.token.secret.key=hush
delegation.token.max.lifetime.ms=7000
delegation.token.expiry.time.ms=1000
delegation.token.expiry.check.interval.ms=20
ottla.delegation.tokens.per.owner.max=3
"""
NO_ERROR = ErrorCode.none


class Scene:
    def __init__(self, stand_in: BrokerStandIn) -> None:
        self.now_ms = 1_000_000
        config = BrokerConfig.from_sources(SETTINGS)
        self.service = TokenService(
            0,
            lambda: config,
            lambda: stand_in.image,
            stand_in.intents,
            lambda: stand_in.applied_revisions,
            lambda: self.now_ms,
            Random(1),
        )
        stand_in.follower.listen(self.service.changed)
        stand_in.tokens = self.service
        self.broker = stand_in

    async def ask(
        self, key: int, version: int, who: str = "alice", listener: str = "IN", by_token: bool = False, **message: Any
    ) -> Any:
        connection: Any = SimpleNamespace(
            listener=SimpleNamespace(name=listener),
            principal=f"User:{who}",
            by_token=by_token,
            client_host="127.0.0.1",
        )
        body = read_request(key, version, write_request(key, version, message))
        response = await HANDLERS[key](self.broker, Request(key, version, 1, "c", connection), body)
        return read_response(key, version, write_response(key, version, response))

    async def create(self, **message: Any) -> Any:
        return await self.ask(CREATE, 3, **{"renewers": [], "max_lifetime": -1} | message)

    async def described(self, **message: Any) -> list[tuple[str, str]]:
        answer = await self.ask(DESCRIBE, 3, **{"owners": None} | message)
        assert answer.error_code == NO_ERROR
        return [(token.token_id, token.principal_name) for token in answer.tokens]


RIGHTS = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def play(folder: Path, act: Callable[[Scene], Awaitable[None]], settings: str = RIGHTS) -> None:
    async def main() -> None:
        async with broker_stand_in(folder, settings) as stand_in, asyncio.timeout(30):
            await act(Scene(stand_in))

    asyncio.run(main())


def test_a_token_is_made_described_renewed_and_ended(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        made = await scene.create(renewers=[{"principal_type": "User", "principal_name": "bob"}])
        assert (made.principal_type, made.principal_name, made.token_requester_principal_name) == (
            "User",
            "alice",
            "alice",
        )
        assert [stamp.timestamp() for stamp in (made.issue_timestamp, made.expiry_timestamp, made.max_timestamp)] == [
            1000.0,
            1001.0,
            1007.0,
        ]
        assert await scene.described() == await scene.described(who="bob") == [(made.token_id, "alice")]
        assert await scene.described(who="eve") == []
        assert await scene.described(owners=[]) == []
        scene.now_ms += 500
        renewed = await scene.ask(RENEW, 2, who="bob", hmac=made.hmac, renew_period=-1)
        assert renewed.expiry_timestamp.timestamp() == 1001.5
        assert (await scene.ask(EXPIRE, 2, who="eve", hmac=made.hmac, expiry_time_period=-1)).error_code == 63
        ended = await scene.ask(EXPIRE, 2, hmac=made.hmac, expiry_time_period=-1)
        assert (ended.error_code, ended.expiry_timestamp.timestamp()) == (NO_ERROR, 1000.5)
        assert await scene.described() == []
        assert (await scene.ask(RENEW, 1, hmac=made.hmac, renew_period=-1)).error_code == 62

    play(tmp_path, act)


def test_where_tokens_are_refused(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        assert (await scene.create(listener="OUT")).error_code == 64
        assert (await scene.create(by_token=True)).error_code == 64
        assert (await scene.ask(DESCRIBE, 1, listener="OUT", owners=None)).error_code == 64
        other = {"owner_principal_type": "User", "owner_principal_name": "bob"}
        assert (await scene.create(**other)).error_code == 65
        assert (await scene.create(renewers=[{"principal_type": "Role", "principal_name": "x"}])).error_code == 67
        assert not scene.broker.image.tokens

    play(tmp_path, act)


def test_rights_on_users_and_tokens_are_rights_to_others_tokens(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        async def allow(operation: AclOperation, kind: ResourceType, name: str) -> None:
            binding = AclBinding(kind, PatternType.LITERAL, name, "User:alice", "*", operation, Permission.ALLOW)
            await scene.broker.intents.create_acls([binding], 5.0)

        bobs = {"owner_principal_type": "User", "owner_principal_name": "bob"}
        await allow(AclOperation.CREATE_TOKENS, ResourceType.USER, "User:bob")
        made = await scene.create(**bobs)
        assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (NO_ERROR, "bob", "alice")
        second = await scene.create(**bobs)
        assert await scene.described() == []
        await allow(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, made.token_id)
        assert await scene.described() == [(made.token_id, "bob")]
        await allow(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob")
        assert {token for token, _ in await scene.described()} == {made.token_id, second.token_id}
        carol = [{"principal_type": "User", "principal_name": "carol"}]
        assert await scene.described(owners=carol) == []
        assert await scene.described(who="eve") == []

    play(tmp_path, act)


def test_without_an_authorizer_everybody_may_make_and_see_all_tokens(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        made = await scene.create(owner_principal_type="User", owner_principal_name="bob")
        assert await scene.described(who="eve") == [(made.token_id, "bob")]

    play(tmp_path, act, "")


def test_expired_tokens_are_deleted_and_others_stay(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.create()
        scene.now_ms += 800
        second = await scene.create()
        sweeping = asyncio.ensure_future(scene.service.delete_expired())
        await asyncio.sleep(0.1)
        assert {token for token, _ in await scene.described()} == {first.token_id, second.token_id}
        scene.now_ms += 300
        await until(lambda: len(scene.broker.image.tokens) == 1)
        assert [token for token, _ in await scene.described()] == [second.token_id]
        sweeping.cancel()

    play(tmp_path, act)


def test_an_owner_has_a_bounded_number_of_tokens(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        made = await asyncio.gather(*(scene.create() for _ in range(5)))
        codes = sorted(int(each.error_code) for each in made)
        assert codes == [0, 0, 0, int(ErrorCode.policy_violation), int(ErrorCode.policy_violation)]
        assert len(scene.broker.image.tokens) == 3
        assert (await scene.create(owner_principal_type="User", owner_principal_name="bob")).error_code == NO_ERROR
        token = next(each for each in made if not each.error_code)
        await scene.ask(EXPIRE, 2, hmac=token.hmac, expiry_time_period=-1)
        assert (await scene.create()).error_code == NO_ERROR

    play(tmp_path, act, "")
