"""An immutable map whose successors share nearly all of its memory. Pure.

A metadata image is replaced at every revision. A copy of a dict of 10,000 topics would each time cost more than all
other work of the revision. Here the entries are in hash buckets of about 32 entries; a successor copies only the
buckets that change, and the tuple of buckets. The hash is the same in all processes (Python's own hash of strings
isn't). So the iteration order is the same in all processes that applied the same changes in the same order.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Any, Generic, TypeVar, overload
from uuid import UUID
from zlib import crc32

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_BUCKET_SIZE = 32


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """An immutable mapping whose keys are strings, ints, UUIDs or tuples of these; `changed` returns its successor."""

    __slots__ = ("_buckets", "_size")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        initial = dict(entries)
        self._size = len(initial)
        self._buckets = _distributed(initial.items(), _bucket_count(len(initial)))

    def changed(self, puts: Mapping[K, V] = {}, removes: Iterable[K] = ()) -> PersistentMap[K, V]:
        """This map's successor without the keys `removes` (absent ones are ignored), and with the entries `puts`."""
        buckets = list(self._buckets)
        mask = len(buckets) - 1
        copied: set[int] = set()
        size = self._size
        for key in removes:
            position = _hash(key) & mask
            if key in buckets[position]:
                if position not in copied:
                    copied.add(position)
                    buckets[position] = buckets[position].copy()
                del buckets[position][key]
                size -= 1
        for key, value in puts.items():
            position = _hash(key) & mask
            if position not in copied:
                copied.add(position)
                buckets[position] = buckets[position].copy()
            bucket = buckets[position]
            size += key not in bucket
            bucket[key] = value
        successor: PersistentMap[K, V] = object.__new__(PersistentMap)
        successor._size = size
        if size > len(buckets) * _BUCKET_SIZE * 2:
            items = (item for bucket in buckets for item in bucket.items())
            successor._buckets = _distributed(items, _bucket_count(size))
        else:
            successor._buckets = tuple(buckets)
        return successor

    def __getitem__(self, key: K) -> V:
        return self._buckets[_hash(key) & (len(self._buckets) - 1)][key]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value, or `default`."""
        return self._buckets[_hash(key) & (len(self._buckets) - 1)].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[_hash(key) & (len(self._buckets) - 1)]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._buckets)

    def items(self) -> ItemsView[K, V]:
        """The entries. Iterating needs no look-up for each key, which would cost much with thousands of partitions."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """The values, iterated without look-ups, as in `items`."""
        return _Values(self)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"


class _Items(ItemsView[K, V]):
    _mapping: PersistentMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(bucket.items() for bucket in self._mapping._buckets)


class _Values(ValuesView[V]):
    _mapping: PersistentMap[Any, V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(bucket.values() for bucket in self._mapping._buckets)


def _hash(key: object) -> int:
    if isinstance(key, str):
        return crc32(key.encode())
    if isinstance(key, int):
        return key
    if isinstance(key, UUID):
        return key.int >> 40  # random bits of the UUID, without those of its version and variant
    if isinstance(key, tuple):
        combined = 0
        for part in key:
            combined = combined * 31 + _hash(part)
        return combined
    return 0 if key is None else hash(key)


def _bucket_count(size: int) -> int:
    count = 1
    while count * _BUCKET_SIZE < size:
        count *= 4
    return count


def _distributed(items: Iterable[tuple[K, V]], count: int) -> tuple[dict[K, V], ...]:
    buckets: list[dict[K, V]] = [{} for _ in range(count)]
    for key, value in items:
        buckets[_hash(key) & (count - 1)][key] = value
    return tuple(buckets)
