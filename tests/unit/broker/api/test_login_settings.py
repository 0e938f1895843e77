"""Alterations of a broker's settings that concern logins: what nobody could log in by is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ottla.broker.api import incremental_alter_configs
from ottla.protocol.messages import read_request, write_request
from ottla.security.jaas import PLAIN_MODULE, SCRAM_MODULE
from ottla.security.tls_listeners import TlsListeners
from tests.unit.broker.api.stand_in import BrokerStandIn, broker_stand_in, request_of

JAAS = "listener.name.sec.plain.sasl.jaas.config"
SETTINGS = f"""
listeners=PLAINTEXT://127.0.0.1:9092,SEC://127.0.0.1:9093
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SEC:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
{JAAS}={PLAIN_MODULE} required user_a="secret-a";
"""


async def _alter(broker: BrokerStandIn, *changes: tuple[str, str | None]) -> tuple[int, str]:
    """(error code, message) of the change of these settings of broker 0; None removes a setting."""
    configs = [{"name": name, "config_operation": int(value is None), "value": value} for name, value in changes]
    body = {"resources": [{"resource_type": 4, "resource_name": "0", "configs": configs}], "validate_only": False}
    decoded = read_request(44, 1, write_request(44, 1, body))
    stand_in: Any = broker
    response = await incremental_alter_configs.handle(stand_in, request_of(44, 1), decoded)
    [answered] = response["responses"]
    settings = broker.image.config("broker", "0"), broker.image.config("broker", "")
    broker.config = broker.config.with_dynamic(*settings)[0]
    return int(answered.get("error_code", 0)), answered.get("error_message") or ""


def test_a_jaas_configuration_by_which_nobody_could_log_in_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_stand_in(tmp_path, SETTINGS) as broker:
            broker.tls = TlsListeners(serves=True)
            for text, problem in (
                ("garbage", "isn't one of Kafka's login modules"),
                (f'{PLAIN_MODULE} required user_b="secret-b', "quote"),
                (f'{PLAIN_MODULE} required user_b="secret-b"', "semicolon"),
                (f"{SCRAM_MODULE} required;", "PLAIN needs"),
            ):
                code, message = await _alter(broker, (JAAS, text))
                assert (code, problem in message, JAAS in message) == (42, True, True), message
                assert "secret" not in message
            assert JAAS not in broker.config.dynamic_broker
            assert await _alter(broker, (JAAS, f'{PLAIN_MODULE} required user_b="secret-b";')) == (0, "")
            code, message = await _alter(broker, ("listener.name.sec.sasl.enabled.mechanisms", "PLAIN,GSSAPI"))
            assert (code, "Ottla doesn't have GSSAPI" in message) == (42, True)
            assert await _alter(broker, (JAAS, None)) == (0, "")

    asyncio.run(main())


def test_an_entry_of_another_version_doesnt_keep_other_settings_from_being_changed(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_stand_in(tmp_path, SETTINGS) as broker:
            broker.tls = TlsListeners(serves=True)
            broker.config = broker.config.with_dynamic({JAAS: "of a later version"}, {})[0]
            assert (await _alter(broker, ("max.connections", "5")))[0] == 0

    asyncio.run(main())
