"""The store's lineage: random strings by which a process tells its own store from an older copy or another store. Pure.

While brokers run or are stopped, the store may be emptied, restored from a snapshot, or replaced by another cluster's.
Revisions don't show that: a restored store may have been given higher ones (`etcdutl --bump-revision`), or may have
passed the old store's revision by the writes since the restore. So from time to time the controller adds a *word* to
the store: a random string of eight characters. Each process remembers the last word that it has seen (brokers on disk).

Words are numbered. A row of `WORDS_PER_ROW` words is the value of one key. A word is written when metadata has changed
since the last word, but at most one in `INTERVAL_S`; an idle cluster writes none. The newest `ROWS_MAX` rows are kept:
the words of one day if metadata changes all the time, and of more days otherwise. That is at most 270 keys of 0.6 KB,
and a write is half a row on average. Words have numbers instead of dates, so no clock decides which rows are kept. The
newest word also has a key of its own, which is named after the word. Transactions need this key: they can compare only
revisions, not values, and two diverged stores may have changed a row last at the same revision.

1. A word is random and is never written twice, so all stores that have the word share the history up to it. If a store
   has the last word that a process knows, it has everything that was written before that word.
2. No word between others is dropped, because each word may be the last one that some stopped broker knows. An earlier
   word can't replace it: a copy of the store that was made between the two words, and has diverged since, has the
   earlier word, too.
3. The last known word proves nothing about the writes of the seconds after it. So a running process compares a whole
   new snapshot with its image: revisions, key by key, and the partitions' epochs, which never decrease in one history
   (`check_successor`). A process that starts compares the epochs in its logs (`check_logs`).
4. A word whose number is below the oldest kept row can't be checked: the broker that knows it was stopped for longer
   than a day of changes. Then only the epochs are compared. If the row of a known word doesn't exist yet, the store is
   older than the word.
5. A store that was made before Ottla had words contains none. A process that has never seen a word accepts any store of
   its own cluster. A process that has seen a word doesn't accept a store without words.
6. A restore from a backup begins a new generation without words, under a random id, and names the earlier restores that
   it knows of (`backup.py`). If a process finds another id than the one that it knows, it accepts the store as a new
   one, unless the id is that of an earlier restore: each process remembers the ids of earlier restores, too. A count or
   a clock couldn't replace the ids. Two restores of one backup have the same count. And if a clock was ahead at one
   restore, all later restores would be refused until that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from . import keys
from .image import Image
from .keys import KINDS, MappedKind
from .model.cluster import Cluster, LineageRow, LineageWord, restore_id
from .store import Delete, ForeignStore, Guard, Put, Write

INTERVAL_S = 5.0
WORD_BYTES = 6  # random bytes; the word is their URL-safe base64
WORDS_PER_ROW = 64
RESTORES_MAX = 100  # the number of earlier restores whose ids are remembered
ROWS_MAX = 270  # 17,280 words, one each five seconds of a day

_WORD_CHARACTERS = 8
_NO_WORD = -1
_WAY_BACK = (
    "put the newer store back, or stop all brokers and make the content of the older copy a new generation, with"
    " `ottla metadata backup` and `ottla metadata restore --replace`"
)

Rows = Mapping[int, LineageRow]


class Known(NamedTuple):
    """The lineage of the cluster's metadata as a process has last seen it.

    `word` is the last word that the process has seen, and `number` its number, which is −1 if the process has seen no
    word. `past` are the ids of the restores that came before the last one, as far as the store or the process knows
    them.
    """

    cluster_id: str
    generation: int
    number: int = _NO_WORD
    word: str = ""
    restored_ms: int = 0
    restore: str = ""
    past: tuple[str, ...] = ()

    @property
    def restore_id(self) -> str:
        """The id of the last restore of the store from a backup, as in `Cluster.restore_id`."""
        return self.restore or restore_id(self.generation, self.restored_ms)

    @property
    def age(self) -> tuple[int, int]:
        """Orders restores from backups that have no random ids, as `Cluster.age` does."""
        return self.restored_ms, self.generation


def judge(known: Known | None, cluster: Cluster | None, rows: Rows) -> Known:
    """The lineage of a store with this `cluster` and these `rows`. Raises ForeignStore if it isn't the store of
    `known`.

    If the row of the known word exists, `rows` may lack the rows before it.
    """
    if cluster is None:
        whose = "" if known is None else f" of cluster {known.cluster_id}"
        raise ForeignStore(
            f"the metadata store is empty, but this process has used a store{whose} before; put the right store back, "
            "or restore it from a backup with `ottla metadata restore`"
        )
    if known is not None:
        if cluster.id != known.cluster_id:
            raise ForeignStore(
                f"the metadata store holds cluster {cluster.id}, and this process belongs to cluster {known.cluster_id}"
                "; put the right store back, or point this process to the store of its cluster"
            )
        if _was_left_behind(cluster, known):
            raise _older(
                f"holds generation {cluster.generation} of cluster {cluster.id}, which has since been restored"
                f" as generation {known.generation}"
            )
        if cluster.restore_id == known.restore_id and known.number != _NO_WORD:
            _check_word(known, rows)
    past = cluster.past if known is None else ids_of((*known.past, known.restore_id, *cluster.past), cluster.restore_id)
    return Known(cluster.id, cluster.generation, *_newest(rows), cluster.restored_ms, cluster.restore, past)


def newest_of(found: Iterable[Known]) -> Known | None:
    """The newest of several copies of one process's `Known`, such as the copies in its log directories."""
    newest = None
    for known in found:
        if newest is None or _is_newer(known, newest):
            newest = known
    return newest


def ids_of(restores: Iterable[str], but: str) -> tuple[str, ...]:
    """The ids in `restores`, each once; at most the last `RESTORES_MAX`. The id `but` and empty ids are left out."""
    return tuple(each for each in dict.fromkeys(restores) if each not in ("", but))[-RESTORES_MAX:]


def next_word(rows: Rows, word: str) -> tuple[Guard, list[Write]]:
    """The guard and the writes that add `word` to the lineage's newest row, or to a new row if that one is full.

    The guard holds if no other process has added a word since `rows` were read.
    """
    assert len(word) == _WORD_CHARACTERS
    newest = max(rows, default=0)
    row = rows.get(newest, LineageRow(""))
    before = row.words[-_WORD_CHARACTERS:]
    if len(row.words) >= WORDS_PER_ROW * _WORD_CHARACTERS:
        newest, row = newest + 1, LineageRow("")
    written = LineageRow(row.words + word, format=row.format, unknown=row.unknown)
    writes: list[Write] = [
        Put(keys.lineage(newest), written.encode()),
        Put(keys.lineage_word(word), LineageWord().encode()),
    ]
    if before:
        writes.append(Delete(keys.lineage_word(before)))
    writes += [Delete(keys.lineage(old)) for old in sorted(rows) if old <= newest - ROWS_MAX][:100]
    return Guard(keys.lineage(newest), row.revision), writes


def is_due(image: Image) -> bool:
    """Whether any metadata has changed since the lineage's newest word was written, so that a new word is needed."""
    row = image.lineage.get(max(image.lineage, default=0))
    return row is None or row.revision < image.revision


def guards_of(known: Known, rows: Rows) -> tuple[Guard, Guard]:
    """Two guards for a transaction on the store that `known` was read from. Both hold as long as the lineage's newest
    word in that store is `known.word`. The first guard is on the word's key, which was written together with its row.
    The second guard is on the row. It proves nothing by itself, but if it fails, the rejection brings the row's present
    value."""
    row = known.number // WORDS_PER_ROW
    revision = rows[row].revision
    return Guard(keys.lineage_word(known.word), revision), Guard(keys.lineage(row), revision)


def row_of(known: Known | None) -> int | None:
    """The number of the lineage's row that contains the known word; None if no word is known."""
    return None if known is None or known.number == _NO_WORD else known.number // WORDS_PER_ROW


def check_successor(before: Image, after: Image, broker_id: int) -> Iterator[None]:
    """Compares all entries, and yields after each topic, so that the caller can pause there.

    Raises ForeignStore if `after`, a new snapshot, can't be a later state of the same history as `before`:

    1. If an entry of `after` was last changed at or before the revision of `before`, then `before` has the same entry,
       last changed at the same revision.
    2. A partition's epochs never decrease.
    3. A partition of which this broker has a replica is missing in `after` only if its topic has a tombstone. The
       tombstone may be in `before` alone, because the controller removes it once this broker has confirmed that it
       deleted its replica.
    """
    yield from _check_revisions(before, after)
    for topic_id, partitions in before.partitions.items():
        yield
        for index, known in partitions.items():
            state = after.partition(topic_id, index)
            if state is None:
                held = broker_id in known.replicas and broker_id not in known.adding
                if held and topic_id not in before.tombstones and topic_id not in after.tombstones:
                    raise _older(
                        f"doesn't know {_name(before, topic_id, index)}, although this broker has a replica of it"
                    )
            elif state.leader_epoch < known.leader_epoch or state.partition_epoch < known.partition_epoch:
                raise _older(
                    f"has {_name(before, topic_id, index)} in leader epoch {state.leader_epoch} and partition epoch"
                    f" {state.partition_epoch}, and this process has seen epochs {known.leader_epoch} and"
                    f" {known.partition_epoch}"
                )


def check_logs(image: Image, epochs: Iterable[tuple[tuple[UUID, int], int]]) -> None:
    """Raises ForeignStore if the last leader epoch of a log is greater than its partition's epoch in the store.

    States that were restored from a backup may be older than the logs, and aren't compared.
    """
    for (topic_id, index), epoch in epochs:
        state = image.partition(topic_id, index)
        if state is not None and not state.restored and state.leader_epoch < epoch:
            name = _name(image, topic_id, index)
            raise _older(
                f"has {name} in leader epoch {state.leader_epoch}, and this broker's log has records of epoch {epoch}"
            )


def _check_revisions(before: Image, after: Image) -> Iterator[None]:
    if after.revision < before.revision:
        raise _older(f"is at revision {after.revision}, and this process has seen revision {before.revision}")
    for kind in KINDS.values():
        if kind.field and isinstance(kind, MappedKind) and kind is not keys.partition:
            were = getattr(before, kind.field)
            for identity, value in getattr(after, kind.field).items():
                known = were.get(identity)
                if value.revision <= before.revision and (known is None or known.revision != value.revision):
                    raise _older(
                        f"has other values of `{kind.field}` than this process saw at revision {before.revision}"
                    )
    for topic_id, partitions in after.partitions.items():
        yield
        for index, state in partitions.items():
            was = before.partition(topic_id, index)
            if state.revision <= before.revision and (was is None or was.revision != state.revision):
                raise _older(f"has another state of {_name(after, topic_id, index)} than this process saw")


def _was_left_behind(store: Cluster | Known, known: Known) -> bool:
    """Whether the store is outdated, because the restore that made it came before the restore that `known` names."""
    if known.restore_id in ("", store.restore_id, *store.past):
        return False
    if store.restore_id in ("", *known.past):
        return True
    return not store.restore and not known.restore and store.age < known.age


def _is_newer(one: Known, other: Known) -> bool:
    if one.restore_id == other.restore_id:
        return one.number > other.number
    behind = _was_left_behind(other, one)
    return one.age > other.age if behind == _was_left_behind(one, other) else behind


def _check_word(known: Known, rows: Rows) -> None:
    row, at = divmod(known.number, WORDS_PER_ROW)
    if not rows:
        raise _older(
            f"has none of the random words that controllers write to it, and this process has seen word {known.number}"
        )
    if row < min(rows):
        return  # the row of this process's word isn't kept any more
    words = rows[row].words if row in rows else ""
    found = words[at * _WORD_CHARACTERS : (at + 1) * _WORD_CHARACTERS]
    if not found:
        raise _older(
            "has the random words that controllers write to it only up to"
            f" word {_newest(rows)[0]}, and this process has seen word {known.number}"
        )
    if found != known.word:
        raise _older(
            f"has another random word {known.number} of a controller than this process has seen, so it has diverged"
        )


def _newest(rows: Rows) -> tuple[int, str]:
    if not rows:
        return _NO_WORD, ""
    row = max(rows)
    words = rows[row].words
    return row * WORDS_PER_ROW + len(words) // _WORD_CHARACTERS - 1, words[-_WORD_CHARACTERS:]


def _older(why: str) -> ForeignStore:
    return ForeignStore(f"the metadata store is an older copy: it {why}; {_WAY_BACK}")


def _name(image: Image, topic_id: UUID, index: int) -> str:
    intent = image.intents_by_id.get(topic_id)
    return f"{topic_id if intent is None else intent.name}-{index}"
