"""A backup of the metadata store as a file, and the restore of a store from such a file.

The file consists of lines of JSON: a head, one line for each key, and a tail with a checksum, so that a truncated file
is never taken for a whole one. Keys that are attached to leases aren't in the file: such a key says that a process is
alive, and only that process may write the key.

A backup is outdated when it is restored: after it was made, leaders, ISRs and epochs have changed, and brokers have
acknowledged records. So a restore begins a new *generation*, under a random id (`lineage.py` says why). Values that may
have become false aren't restored:

1. No restored partition has a leader. A leader is elected only by the ends of the replicas' logs, once all awaited
   brokers have reported them (`ottla.controller.recovery`). Epochs of registrations are removed, because they are
   revisions of another store.
2. Producer ids continue far above all ids that can have been handed out since the backup. The first id is the number of
   seconds since 2020, by the clock, times 2^30. If the backup or the store has an id that the clock would reach only
   after more than a minute, the clock was ahead at an earlier restore. Then the first id is 2^40 above the highest id
   of the backup and the store.
3. Requested elections and reassignments are dropped. So are the words of the lineage, the random strings by which
   processes recognise the store (`lineage.py`): a new lineage begins.
4. Topics are written after the states of their partitions, and the cluster is `restoring` until everything is written.
   Until then, brokers don't start, and no controller decides by the part of the metadata that is already written.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from . import keys
from .keys import Kept, kind_of
from .lineage import ids_of
from .model.brokers import NO_EPOCH
from .model.cluster import Cluster, ProducerIds, new_restore_id
from .model.partitions import NO_LEADER, Partition
from .store import (
    NO_LEASE,
    TRANSACTION_OPERATIONS_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    Committed,
    Delete,
    Entry,
    Guard,
    Put,
    Snapshot,
    Store,
    Write,
)

FILE_FORMAT = 1
_MAGIC = "ottla-metadata-backup"
_PRODUCER_IDS_PER_SECOND = 1 << 30
_PRODUCER_IDS_SINCE_BACKUP = 1 << 40  # more ids than can be handed out in ten years, at 3,000 a second
_CLOCK_ERROR_S_MAX = 60  # the clocks of machines differ, and a second restore may follow the first immediately
_PRODUCER_IDS_SINCE_S = 1_577_836_800  # the beginning of 2020; an id has 63 bits, which last until 2292
_RESTORE_ID_BYTES = 6  # random bytes; URL-safe base64 has no @, unlike `model.cluster.restore_id`


class NotABackup(Exception):
    """A file isn't a whole backup of a metadata store."""


class RestoreRefused(Exception):
    """The backup may not be restored to this store in the store's present state."""


class StoreNotEmpty(RestoreRefused):
    """The store has content, which a restore with `replace_all` would drop."""


@dataclass(frozen=True, slots=True)
class Backup:
    """The content of a backup. `brokers` are the ids of the brokers that were registered when it was made."""

    cluster: Cluster
    revision: int
    brokers: tuple[int, ...]
    entries: tuple[Entry, ...]


def lines_of(snapshot: Snapshot) -> Iterator[str]:
    """The lines of a backup of a whole store. Raises NotABackup if the store is empty or only half restored."""
    found = {entry.key: entry for entry in snapshot.entries}
    if keys.cluster.key not in found:
        raise NotABackup("the metadata store is empty")
    cluster = Cluster.decode(found[keys.cluster.key])
    if cluster.restoring:
        raise NotABackup("a restore of the metadata store hasn't ended; run `ottla metadata restore` again")
    brokers = sorted(keys.broker.of(key) for key in found if kind_of(key) is keys.broker)
    lasting = (entry for entry in snapshot.entries if entry.lease == NO_LEASE)
    kept = [entry for entry in lasting if _kept(entry.key) is not Kept.LEFT_OUT]
    head = {_MAGIC: FILE_FORMAT, "cluster": cluster.id, "revision": snapshot.revision, "brokers": brokers}
    checksum = hashlib.sha256()
    for document in (head, *map(_document, kept)):
        line = json.dumps(document, separators=(",", ":")) + "\n"
        checksum.update(line.encode())
        yield line
    yield json.dumps({"keys": len(kept), "sha256": checksum.hexdigest()}) + "\n"


def read_backup(lines: Sequence[str]) -> Backup:
    """The backup in the lines of a file. Raises NotABackup, UnsupportedFormat."""
    try:
        head, *documents, tail = map(json.loads, lines)
        file_format = head[_MAGIC]
    except (ValueError, KeyError, TypeError) as error:
        raise NotABackup("this is no backup of a metadata store, or the end of it is missing") from error
    if file_format != FILE_FORMAT:
        raise NotABackup(f"the backup has format {file_format}; this Ottla reads {FILE_FORMAT}: upgrade Ottla")
    checksum = hashlib.sha256("".join(lines[:-1]).encode()).hexdigest()
    if not isinstance(tail, dict) or (tail.get("keys"), tail.get("sha256")) != (len(documents), checksum):
        raise NotABackup("the backup is damaged, or the end of it is missing")
    entries = tuple(map(_entry, documents))
    cluster = next(Cluster.decode(entry) for entry in entries if entry.key == keys.cluster.key)
    return Backup(cluster, head["revision"], tuple(head["brokers"]), entries)


def restored(backup: Backup, generation: int, producer_ids: int, gone: Iterable[int] = ()) -> tuple[Cluster, list[Put]]:
    """The restored metadata: (the cluster with its new generation, the writes of all other keys in the order in which
    they must be applied).

    No producer id below `producer_ids` will be handed out. Elections after the restore don't wait for the brokers in
    `gone`. Raises UnsupportedFormat.
    """
    awaited = set(backup.brokers)
    puts = []
    next_ids = ProducerIds(0)
    for entry in sorted(backup.entries, key=lambda entry: kind_of(entry.key) is keys.topic):
        kind, value = kind_of(entry.key), entry.value
        if kind is keys.cluster or _kept(entry.key) is not Kept.RESTORED:
            continue
        if kind is keys.producer_ids:
            next_ids = ProducerIds.decode(entry)
            continue
        if kind is keys.partition:
            state = _without_beliefs(Partition.decode(entry))
            awaited.update(state.replicas)
            value = state.encode()
        puts.append(Put(entry.key, value))
    ids = replace(next_ids, next_id=max(next_ids.next_id, producer_ids))
    puts.insert(0, Put(keys.producer_ids.key, ids.encode()))
    return replace(backup.cluster, generation=generation, awaited=tuple(sorted(awaited.difference(gone)))), puts


async def restore(store: Store, backup: Backup, *, replace_all: bool = False, gone: Iterable[int] = ()) -> Cluster:
    """Replaces the content of the store by the writes that `restored` makes of the backup. Returns the store's new
    cluster.

    A store that isn't empty is refused without `replace_all`, unless an earlier restore into it was interrupted. An
    interrupted restore may be repeated, with the same backup or another one. Raises RestoreRefused,
    UnsupportedFormat, StoreUnavailable, UnknownOutcome.
    """
    snapshot = await store.read()
    before = {entry.key: entry for entry in snapshot.entries}
    present = Cluster.decode(before[keys.cluster.key]) if keys.cluster.key in before else None
    _check(backup, before, present, replace_all=replace_all)
    handed_out = _handed_out((*backup.entries, *snapshot.entries))
    generation = max(backup.cluster.generation, 0 if present is None else present.generation) + 1
    cluster, puts = restored(backup, generation, handed_out, gone)
    earlier = [each for each in (backup.cluster, present) if each is not None]
    cluster = replace(
        cluster,
        # This time must be later than those of earlier restores: versions of Ottla that know no ids compare it.
        restored_ms=max(int(time.time() * 1000), 1 + max(each.restored_ms for each in earlier)),
        restore=(restore_id := new_restore_id(generation, secrets.token_urlsafe(_RESTORE_ID_BYTES))),
        past=ids_of((past for each in earlier for past in (*each.past, each.restore_id)), restore_id),
    )
    begun = replace(cluster, restoring=True).encode()
    revision = await _write(store, 0 if present is None else present.revision, [Put(keys.cluster.key, begun)])
    wanted = {put.key for put in puts}
    deletes = [Delete(key) for key in before if key not in wanted and key != keys.cluster.key]
    # Deletions of topics come first, so that no topic is ever without the states of its partitions.
    deletes.sort(key=lambda delete: kind_of(delete.key) is not keys.topic)
    for batch in _batches([*deletes, *puts]):
        await _write(store, revision, batch)
    await _write(store, revision, [Put(keys.cluster.key, cluster.encode())])
    return cluster


def _kept(key: str) -> Kept:
    """Whether a backup contains this key, and whether a restore writes it. A key of a later version of Ottla is
    restored unchanged."""
    kind = kind_of(key)
    return Kept.RESTORED if kind is None else kind.kept


def _handed_out(entries: Iterable[Entry]) -> int:
    """The first producer id after the restore, which is above all ids that were handed out before.

    The first id follows from the clock or, if the clock was ahead at an earlier restore, from the highest id in the
    `entries`. Raises RestoreRefused if the clock shows a time before 2020.
    """
    by_clock = int(time.time() - _PRODUCER_IDS_SINCE_S) * _PRODUCER_IDS_PER_SECOND
    if by_clock < 0:
        raise RestoreRefused(
            "the restore takes producer ids from the clock, and this machine's clock is before 2020: correct the clock"
        )
    known = max(
        (ProducerIds.decode(entry).next_id for entry in entries if entry.key == keys.producer_ids.key), default=0
    )
    if by_clock + _CLOCK_ERROR_S_MAX * _PRODUCER_IDS_PER_SECOND < known:
        return known + _PRODUCER_IDS_SINCE_BACKUP
    return max(by_clock, known)


def _check(backup: Backup, before: dict[str, Entry], present: Cluster | None, *, replace_all: bool) -> None:
    alive = sorted(keys.broker.of(key) for key in before if kind_of(key) is keys.broker)
    if len(alive) > 1:
        raise RestoreRefused(
            f"brokers {', '.join(map(str, alive))} run on the metadata store: stop all of them before the restore"
        )
    if alive or keys.controller.key in before:
        who = f"broker {alive[0]}" if alive else "a controller"
        raise RestoreRefused(f"{who} runs on the metadata store: stop its process before the restore")
    if present is not None and present.id != backup.cluster.id:
        raise RestoreRefused(
            f"the backup is of cluster {backup.cluster.id}, and the store holds cluster {present.id}; choose another"
            " backup, or another store"
        )
    half = present is not None and present.restoring
    if before and not half and not replace_all:
        raise StoreNotEmpty(f"the metadata store isn't empty: it holds {len(before)} keys")


async def _write(store: Store, cluster_revision: int, writes: Sequence[Write]) -> int:
    result = await store.transact([Guard(keys.cluster.key, cluster_revision)], writes)
    if not isinstance(result, Committed):
        raise RestoreRefused(
            "another process writes to the metadata store: find out which one, and run the restore again"
        )
    return result.revision


def _batches(writes: Iterable[Write]) -> Iterator[list[Write]]:
    batch: list[Write] = []
    size = 0
    for write in writes:
        size_of_write = len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
        if batch and (len(batch) == TRANSACTION_OPERATIONS_MAX or size + size_of_write > TRANSACTION_SIZE_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(write)
        size += size_of_write
    if batch:
        yield batch


def _without_beliefs(state: Partition) -> Partition:
    """The state without its leader, its ISR's registration epochs and its ELR: these may have become false since the
    backup was made."""
    return replace(
        state,
        leader=NO_LEADER,
        isr_epochs=(NO_EPOCH,) * len(state.isr),
        elr=(),
        elr_epochs=(),
        last_known_elr=(),
        recovering=False,
        restored=True,
        partition_epoch=state.partition_epoch + 1,
    )


def _document(entry: Entry) -> dict[str, str]:
    try:
        return {"key": entry.key, "value": entry.value.decode()}
    except UnicodeDecodeError:
        return {"key": entry.key, "base64": base64.b64encode(entry.value).decode()}


def _entry(document: dict[str, str]) -> Entry:
    value = document["value"].encode() if "value" in document else base64.b64decode(document["base64"])
    return Entry(document["key"], value, 0, 0)
