"""Looking into the store as a person would with ZooKeeper's shell: list, get, watch. Reads only.

Values are shown as the JSON that they are; one that isn't JSON is shown as text. Deleted keys have no value.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from .store import Compacted, Entry, Store


class Shown(NamedTuple):
    """A key for people. `exists` is False for one that a watched revision deleted."""

    key: str
    value: Any
    mod_revision: int
    create_revision: int
    lease: int
    exists: bool = True


async def list_children(store: Store, path: str = "") -> list[tuple[str, int]]:
    """What is right below `path`, as in a directory: names (folders end in a slash), and how many keys each has."""
    prefix = path.strip("/")
    prefix = f"{prefix}/" if prefix else ""
    counts: dict[str, int] = {}
    for entry in (await store.read(prefix)).entries:
        name, slash, _ = entry.key[len(prefix) :].partition("/")
        counts[name + slash] = counts.get(name + slash, 0) + 1
    return sorted(counts.items())


async def get(store: Store, key: str) -> Shown | None:
    """One key, or None."""
    found = [entry for entry in (await store.read(key)).entries if entry.key == key]
    return _shown(found[0]) if found else None


async def dump(store: Store, prefix: str = "") -> list[Shown]:
    """All keys under a prefix, in order."""
    return [_shown(entry) for entry in (await store.read(prefix)).entries]


async def watch(store: Store, prefix: str = "", after_revision: int | None = None) -> AsyncGenerator[Shown, None]:
    """Each change under a prefix from now on (or after a revision), until closed. Skips what was compacted away."""
    after = (await store.read(prefix)).revision if after_revision is None else after_revision
    while True:
        try:
            async with aclosing(store.watch(prefix, after)) as revisions:
                async for revision in revisions:
                    after = revision.revision
                    for key, entry in revision.changes:
                        yield Shown(key, None, after, 0, 0, False) if entry is None else _shown(entry)
            return
        except Compacted:
            after = (await store.read(prefix)).revision


def _shown(entry: Entry) -> Shown:
    try:
        value = json.loads(entry.value)
    except ValueError:
        value = entry.value.decode(errors="replace")
    return Shown(entry.key, value, entry.mod_revision, entry.create_revision, entry.lease)
