"""Asks each broker for its load: the broker's work since its start, and its log directories."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.balance.measured import Directory, Worked, read_worked
from ottla.net.admin import BROKER, DESCRIBE_CONFIGS, ask, settings_wanted
from ottla.net.peer import Peer
from ottla.net.streams import Connect
from ottla.operator.objects import OPERATOR
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.settings.own import LOAD

DESCRIBE_LOG_DIRS = (35, 4)
ANSWER_S_MAX = 10.0


class Loads(NamedTuple):
    """The answers of the brokers; a broker that didn't answer is missing."""

    worked: dict[int, Worked]
    directories: list[Directory]


async def ask_loads(addresses: Mapping[int, tuple[str, int]], connect: Connect) -> Loads:
    """Asks the brokers for their loads. `addresses`: broker → its host and port."""
    loads = Loads({}, [])
    for broker, (host, port) in sorted(addresses.items()):
        peer = Peer(connect, host, port, OPERATOR)
        try:
            told = await ask(peer, DESCRIBE_CONFIGS, settings_wanted(BROKER, [str(broker)], [LOAD]), ANSWER_S_MAX)
            answer = await ask(peer, DESCRIBE_LOG_DIRS, {"topics": None}, ANSWER_S_MAX)
        except (OSError, ProtocolError):
            continue
        finally:
            peer.close()
        for result in told.results:
            for entry in result.configs if result.error_code == ErrorCode.none else ():
                loads.worked[broker] = read_worked(time.monotonic(), entry.value)
        loads.directories.extend(_directory(broker, directory) for directory in answer.results)
    return loads


def _directory(broker: int, directory: Any) -> Directory:
    sizes = {
        (str(topic.name), int(partition.partition_index)): int(partition.partition_size)
        for topic in directory.topics
        for partition in topic.partitions
        if not partition.is_future_key
    }
    return Directory(broker, str(directory.log_dir), int(directory.usable_bytes), sizes)
