"""Access control lists, as administrators change them.

A request may have thousands of entries, more than a transaction of etcd can write. So they are written in several
transactions, and a request that fails in the middle leaves some of its entries written. The client sends the request
again: an entry that exists already counts as created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ottla.metadata import keys
from ottla.metadata.model.acls import Acl
from ottla.metadata.settling import Settling, within
from ottla.metadata.store import Committed, Delete, Entry, Guard, Put, Write
from ottla.protocol.acls import AclBinding

_AT_A_TIME = 100  # etcd allows 128 operations in a transaction


class AclIntents:
    """Administrators' requests about access control lists."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    async def create_acls(self, bindings: Sequence[AclBinding], timeout_s: float) -> None:
        """Writes the entries that don't exist yet. Waits until this broker's image has all of them. Raises
        KafkaError."""
        wanted = list(dict.fromkeys(bindings))
        async with within(timeout_s):
            for start in range(0, len(wanted), _AT_A_TIME):
                await self._write(wanted[start : start + _AT_A_TIME], _created)

    async def delete_acls(self, chosen: Callable[[AclBinding], bool], timeout_s: float) -> list[AclBinding]:
        """Deletes the entries that `chosen` is true of, and returns them. Waits until this broker's image lacks all of
        them. Raises KafkaError.

        Entries count that the store has when the request is made, even if this broker's image doesn't show them yet:
        another broker may have written them."""
        async with within(timeout_s):
            await self._settling.until_all_known(keys.acl.prefix)
            found = [binding for binding in self._settling.image.acls if chosen(binding)]
            for start in range(0, len(found), _AT_A_TIME):
                await self._write(found[start : start + _AT_A_TIME], _deleted)
        return found

    async def _write(self, bindings: Sequence[AclBinding], write: Callable[[str, int], Write | None]) -> None:
        """Makes each entry's write, in one transaction that is guarded by the revisions of all of the entries."""
        by_key = {keys.acl(binding): binding for binding in bindings}
        revisions = {key: self._shown(binding) for key, binding in by_key.items()}
        while True:
            guards = [Guard(key, revision) for key, revision in revisions.items()]
            writes = [made for key, revision in revisions.items() if (made := write(key, revision)) is not None]
            result = await self._settling.attempt(guards, writes)
            if isinstance(result, Committed):
                return await self._settling.until_revision(result.revision)
            if result is None:  # the outcome is unknown: the image will show it
                await self._settling.until_settled(*by_key)
                revisions = {key: self._shown(binding) for key, binding in by_key.items()}
            else:
                revisions |= _found(result.failed)

    def _shown(self, binding: AclBinding) -> int:
        acl = self._settling.image.acls.get(binding)
        return 0 if acl is None else acl.revision


def _created(key: str, revision: int) -> Write | None:
    return None if revision else Put(key, Acl().encode())


def _deleted(key: str, revision: int) -> Write | None:
    return Delete(key) if revision else None


def _found(failed: Mapping[str, Entry | None]) -> dict[str, int]:
    return {key: 0 if entry is None else entry.mod_revision for key, entry in failed.items()}
