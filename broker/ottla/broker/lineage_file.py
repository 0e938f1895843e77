"""Keeps in the log directories the newest word of the metadata store's lineage that this broker has seen.

A word is a random string of eight characters that the controller adds to the store from time to time. A broker
recognises its own store by the words that the store contains (`ottla.metadata.lineage`). Every log directory has a file
with the newest word that the broker has seen, because any directory may fail or be replaced. If the files differ, the
one with the newest word counts. A file is replaced atomically, in a thread. If the broker is killed before that, the
file has an older word. That does no harm, because the right store also has the older words.
"""

from __future__ import annotations

import asyncio
import json
import logging

from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import Disk
from ottla.metadata.lineage import Known, newest_of
from ottla.metadata.own_store import OwnStore
from ottla.storage import names

logger = logging.getLogger(__name__)

_VERSION = 1


def read_known(logs: LogDirectories) -> Known | None:
    """The newest lineage word in the broker's log directories; None if no directory has one."""
    found = []
    for path in logs.online_paths:
        try:
            known = read_known_of(logs.disk, path)
        except OSError as error:
            logs.directory_failed(path, error)
            continue
        if known is not None:
            found.append(known)
    return newest_of(found)


async def keep_known(store: OwnStore, logs: LogDirectories) -> None:
    """Writes the newest lineage word to the log directories whenever this broker has seen a new one in the store. Runs
    until cancelled."""
    known = store.known
    await asyncio.to_thread(_write, logs, known)
    while True:
        known = await store.learned(known)
        await asyncio.to_thread(_write, logs, known)


def read_known_of(disk: Disk, path: str) -> Known | None:
    """The lineage word in one log directory's file; None if the file is missing or damaged. Raises OSError."""
    file = f"{path}/{names.LINEAGE}"
    if not disk.exists(file):
        return None
    content = disk.read(file)
    try:
        document = json.loads(content)
        if document["version"] != _VERSION:
            raise ValueError(f"unknown version {document['version']}")
        generation, restored_ms = document["generation"], document["restored_ms"]
        restore, past = document.get("restore", ""), tuple(document.get("past", ()))  # files of older brokers lack them
        return Known(document["cluster"], generation, document["number"], document["word"], restored_ms, restore, past)
    except (ValueError, KeyError, TypeError) as error:
        logger.error(
            "%s is damaged (%s): the check that the metadata store isn't an older copy ignores this file", file, error
        )
        return None


def _write(logs: LogDirectories, known: Known | None) -> None:
    if known is None:
        return
    document = {
        "version": _VERSION,
        "cluster": known.cluster_id,
        "generation": known.generation,
        "number": known.number,
        "word": known.word,
        "restored_ms": known.restored_ms,
        "restore": known.restore,
        "past": known.past,
    }
    for path in logs.online_paths:
        try:
            logs.disk.write_atomically(f"{path}/{names.LINEAGE}", json.dumps(document).encode())
        except OSError as error:
            logger.warning(
                "the newest lineage word, by which a broker recognises its metadata store, can't be written to %s: %s",
                path, error,
            )  # fmt: skip
