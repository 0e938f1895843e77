"""By what a metadata store is known to be the one that a process has known before, and not an older copy of it. Pure.

The store may be emptied, restored from a snapshot, or be another cluster's, while brokers run or are stopped.
Revisions tell nothing of that: a restored store may have been given higher ones (`etcdutl --bump-revision`), or may
have overtaken the old one by what was written to it since. So the controller writes random words, and each process
remembers the last one that it has seen (brokers on disk).

Words are numbered, and stand in rows of `WORDS_PER_ROW`, each row a key. A word is written only when something has
changed since the one before it, at once but at most one each `INTERVAL_S`; an idle cluster writes none. The newest
`ROWS_MAX` rows are kept: all the words of a day in which something changes all the time, and of more days otherwise.
That is at most 270 keys of 0.6 KB; one write is of half a row on average. Numbers are counted and not dated, so no
clock decides what is kept. The newest word has a key of its own, too, that is named after it: a transaction can
compare no values, and that a key was changed last at some revision may be so in two histories.

1. A word is random and is never written twice, so whoever has it has it from the history that it was written in: a
   store with the last word that a process knows has everything that had been written before that word.
2. Words aren't thinned out. Each word may be the last one of some broker that stopped just then; a word that stands
   for its neighbours would also be in a store that was copied between the two, and has gone its own way since.
3. What was written after that last word (some seconds' worth) no word can vouch for. A process that runs then compares
   a whole snapshot with what it knows: revisions, key by key, and the partitions' epochs, which never fall in one
   history (`check_successor`). One that starts compares the epochs in its logs (`check_logs`).
4. A number below the oldest row that is kept can't be judged: its broker was away for longer than a day of changes.
   Only the epochs speak then. Where a row isn't there yet, the store is older.
5. A store from before there were words holds none, and a process that has never seen one accepts any of its own
   cluster. Whoever has seen one doesn't accept a store without words.
6. A restore from a backup begins a new generation without words, under a random id, and names the restores that it
   knows to be before it (`backup.py`). A process that meets another id than it knows begins anew, unless it is the id
   of a restore that was left behind: each process remembers those, too. Neither a count nor a clock would do: two
   restores of one backup have the same count, and a clock that was ahead once would refuse all later restores until
   that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from . import keys
from .image import Image
from .model import Cluster, LineageRow, restore_id
from .store import Delete, ForeignStore, Guard, Put, Write

INTERVAL_S = 5.0
WORD_BYTES = 6  # of randomness; its text is URL-safe base64
WORDS_PER_ROW = 64
RESTORES_MAX = 100  # of the last so many it is known that they are past
ROWS_MAX = 270  # 17,280 words, one each five seconds of a day

_WORD_CHARACTERS = 8
_NO_WORD = -1
_REVISED = ("brokers", "intents", "configs", "quotas", "features", "tombstones", "elections", "reassignments")
_NOTHING = b'{"format":1}'
_WAY_BACK = (
    "put the newer store back, or stop all brokers and make what this one holds a new generation, with `ottla metadata"
    " backup` and `ottla metadata restore --replace`"
)

Rows = Mapping[int, LineageRow]


class Known(NamedTuple):
    """What a process has seen last of its cluster's metadata; `number` is −1 where it has seen no word. `past` are the
    ids of restores that the store or the process has left behind."""

    cluster_id: str
    generation: int
    number: int = _NO_WORD
    word: str = ""
    restored_ms: int = 0
    restore: str = ""
    past: tuple[str, ...] = ()

    @property
    def restore_id(self) -> str:
        """As `Cluster.restore_id`."""
        return self.restore or restore_id(self.generation, self.restored_ms)

    @property
    def age(self) -> tuple[int, int]:
        """As `Cluster.age`."""
        return self.restored_ms, self.generation


def judge(known: Known | None, cluster: Cluster | None, rows: Rows) -> Known:
    """What is known by a store that holds `cluster` and `rows`. Raises ForeignStore where it isn't the one of `known`.

    `rows` need be no more than the row of the known word and the newer ones, where that row exists.
    """
    if cluster is None:
        whose = "" if known is None else f" of cluster {known.cluster_id}"
        raise ForeignStore(
            f"the metadata store is empty, and this isn't a new member{whose}; put the right store back, or restore it"
            " from a backup with `ottla metadata restore`"
        )
    if known is not None:
        if cluster.id != known.cluster_id:
            raise ForeignStore(
                f"the metadata store holds cluster {cluster.id}, and this is a member of cluster {known.cluster_id};"
                " put the right store back, or point this process to its own"
            )
        if _was_left_behind(cluster, known):
            raise _older(
                f"holds generation {cluster.generation} of cluster {cluster.id}, which was restored as generation"
                f" {known.generation} since"
            )
        if cluster.restore_id == known.restore_id and known.number != _NO_WORD:
            _check_word(known, rows)
    past = cluster.past if known is None else ids_of((*known.past, known.restore_id, *cluster.past), cluster.restore_id)
    return Known(cluster.id, cluster.generation, *_newest(rows), cluster.restored_ms, cluster.restore, past)


def newest_of(found: Iterable[Known]) -> Known | None:
    """Of several copies of what one process has known, the one that was written last."""
    newest = None
    for known in found:
        if newest is None or _is_newer(known, newest):
            newest = known
    return newest


def ids_of(restores: Iterable[str], but: str) -> tuple[str, ...]:
    """The ids of restores, each once, without one of them; the last `RESTORES_MAX`."""
    return tuple(each for each in dict.fromkeys(restores) if each not in ("", but))[-RESTORES_MAX:]


def next_word(rows: Rows, word: str) -> tuple[Guard, list[Write]]:
    """How `word` is added to the newest row, or to a new one; the guard holds if nobody has added one meanwhile."""
    assert len(word) == _WORD_CHARACTERS
    newest = max(rows, default=0)
    row = rows.get(newest, LineageRow(""))
    before = row.words[-_WORD_CHARACTERS:]
    if len(row.words) >= WORDS_PER_ROW * _WORD_CHARACTERS:
        newest, row = newest + 1, LineageRow("")
    written = LineageRow(row.words + word, format=row.format, unknown=row.unknown)
    writes: list[Write] = [Put(keys.lineage(newest), written.encode()), Put(keys.lineage_word(word), _NOTHING)]
    if before:
        writes.append(Delete(keys.lineage_word(before)))
    writes += [Delete(keys.lineage(old)) for old in sorted(rows) if old <= newest - ROWS_MAX][:100]
    return Guard(keys.lineage(newest), row.revision), writes


def is_due(image: Image) -> bool:
    """Whether something has changed since the newest word."""
    row = image.lineage.get(max(image.lineage, default=0))
    return row is None or row.revision < image.revision


def guards_of(known: Known, rows: Rows) -> tuple[Guard, Guard]:
    """Hold on the same store while the known word is the newest one there. It was written together with its row.

    The second is the row's, which proves nothing by itself: where it fails, the rejection shows the row as it is now.
    """
    row = known.number // WORDS_PER_ROW
    revision = rows[row].revision
    return Guard(keys.lineage_word(known.word), revision), Guard(keys.lineage(row), revision)


def row_of(known: Known | None) -> int | None:
    """The row that the known word stands in."""
    return None if known is None or known.number == _NO_WORD else known.number // WORDS_PER_ROW


def check_successor(before: Image, after: Image, broker_id: int) -> Iterator[None]:
    """Compares all, with a pause after each topic. Raises ForeignStore where `after`, a new snapshot, can't have come
    after what this process knew before.

    Of one history, whatever a snapshot has that was changed last at a revision that was known before was known before,
    from that very revision. Epochs never fall, and no replica that is here goes without a tombstone. That may have been
    known before: the controller takes it away once this broker has confirmed that its replica is gone.
    """
    yield from _check_revisions(before, after)
    for topic_id, partitions in before.partitions.items():
        yield
        for index, known in partitions.items():
            state = after.partition(topic_id, index)
            if state is None:
                held = broker_id in known.replicas and broker_id not in known.adding
                if held and topic_id not in before.tombstones and topic_id not in after.tombstones:
                    raise _older(f"doesn't know {_name(before, topic_id, index)}, of which a replica is here")
            elif state.leader_epoch < known.leader_epoch or state.partition_epoch < known.partition_epoch:
                raise _older(
                    f"has {_name(before, topic_id, index)} in leader epoch {state.leader_epoch} and partition epoch"
                    f" {state.partition_epoch}, and it was in {known.leader_epoch} and {known.partition_epoch} before"
                )


def check_logs(image: Image, epochs: Iterable[tuple[tuple[UUID, int], int]]) -> None:
    """Raises ForeignStore where a log, by its last leader epoch, knows more of its partition than the store does. What
    was restored from a backup is older, and says so."""
    for (topic_id, index), epoch in epochs:
        state = image.partition(topic_id, index)
        if state is not None and not state.restored and state.leader_epoch < epoch:
            name = _name(image, topic_id, index)
            raise _older(f"has {name} in leader epoch {state.leader_epoch}, and its log here has records of {epoch}")


def _check_revisions(before: Image, after: Image) -> Iterator[None]:
    if after.revision < before.revision:
        raise _older(f"is at revision {after.revision}, and {before.revision} was seen before")
    for name in _REVISED:
        for key, value in getattr(after, name).items():
            known = getattr(before, name).get(key)
            if value.revision <= before.revision and (known is None or known.revision != value.revision):
                raise _older(f"has other {name} than were seen at revision {before.revision}")
    for topic_id, partitions in after.partitions.items():
        yield
        for index, state in partitions.items():
            was = before.partition(topic_id, index)
            if state.revision <= before.revision and (was is None or was.revision != state.revision):
                raise _older(f"has another state of {_name(after, topic_id, index)} than was seen before")


def _was_left_behind(store: Cluster | Known, known: Known) -> bool:
    """Whether a store of that generation is one that was restored to the known one since, or replaced by it."""
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
        raise _older(f"has no lineage word, and word {known.number} was seen before")
    if row < min(rows):
        return  # away for too long
    words = rows[row].words if row in rows else ""
    found = words[at * _WORD_CHARACTERS : (at + 1) * _WORD_CHARACTERS]
    if not found:
        raise _older(f"has lineage words up to {_newest(rows)[0]}, and word {known.number} was seen before")
    if found != known.word:
        raise _older(f"has another lineage word {known.number} than was seen before, so that it has gone its own way")


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
