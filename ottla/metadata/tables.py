"""The embedded store's SQLite file: revisions, entries, history and leases as tables.

Calls block, and only one thread at a time may make them.

| table | content |
|---|---|
| `counter` | `revision` (the last), `compacted` (the history up to that revision is gone), `lease` (the last id) |
| `entry` | the present value of each key |
| `change` | the change that each revision made to each key; the oldest changes are dropped |
| `lease` | when each lease ends, and which process owns it |

Time is the system's monotonic clock, which all processes of a machine share, and which stops while the machine sleeps.
A lease also ends when its owner dies. Each process locks a file of its own (flock, which the kernel releases when the
process ends). If another process can lock that file, the owner is dead. So a process that was killed and started again
needn't wait for the end of its former session. For the same reason no lease outlives a reboot, at which the clock
starts anew.

Transactions are synced to disk before their callers get the result. Keep-alives aren't synced: after a power failure,
no owner of a lease is alive anyway.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .store import (
    NO_LEASE,
    Change,
    Committed,
    Compacted,
    Delete,
    Entry,
    ForeignStore,
    Guard,
    LeaseExpired,
    LeaseId,
    LeaseLeft,
    Put,
    Rejected,
    Revision,
    Snapshot,
    StoreUnavailable,
    UnknownOutcome,
    Write,
)

SCHEMA_VERSION = 1
HISTORY_CHANGES = 100_000  # the number of newest changes that are kept for watches
_COMPACT_EVERY_REVISIONS = 1_000
_BUSY_S = 5.0  # the longest wait for another process's lock on the file
_LAST = "\U0010ffff"
_ENTRY = "key, value, mod_revision, create_revision, lease"

_SCHEMA = """
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counter VALUES ('revision', 0), ('compacted', 0), ('lease', 0);
CREATE TABLE entry (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, mod_revision INTEGER NOT NULL, create_revision INTEGER NOT NULL,
    lease INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX entry_lease ON entry (lease) WHERE lease <> 0;
CREATE TABLE change (
    revision INTEGER NOT NULL, sequence INTEGER NOT NULL, key TEXT NOT NULL, value BLOB,
    create_revision INTEGER NOT NULL, lease INTEGER NOT NULL, PRIMARY KEY (revision, sequence)
) WITHOUT ROWID;
CREATE TABLE lease (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, ttl_ms INTEGER NOT NULL, ends_at_ms INTEGER NOT NULL);
"""


class Tables:
    """One process's connection to the file. `now_ms` is the monotonic clock."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Opens or creates the file. Raises StoreUnavailable if that fails or a newer Ottla wrote the file."""
        self._now_ms = now_ms
        path.parent.mkdir(parents=True, exist_ok=True)
        self._owners = path.with_name(path.name + ".owners")
        self._owners.mkdir(exist_ok=True)
        for other in self._owners.iterdir():
            self._owner_lives(other.name)
        self._owner = secrets.token_hex(8)
        self._owner_file = self._claim(self._owners / self._owner)
        try:
            self._db = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            self._write_ahead()
            self._create_schema(path)
            self._path, self._identity = path, _identity(path)
        except sqlite3.Error as error:
            self._release_owner()
            raise StoreUnavailable(f"the metadata file {path} can't be opened: {error}") from error
        except StoreUnavailable:
            self._release_owner()
            raise

    def close(self) -> None:
        """Closes the file and releases the owner's lock, so that other processes end the leases of this one."""
        self._db.close()
        self._release_owner()

    def check_in_place(self) -> None:
        """Raises ForeignStore if the open file was removed, or another file has its name now."""
        if _identity(self._path) != self._identity:
            raise ForeignStore(
                f"the metadata file {self._path} was removed or replaced while it was in use; put the right one back,"
                " or restore a backup with `ottla metadata restore`, and start again"
            )

    def data_version(self) -> int:
        """SQLite's data version: it has changed since the last call if another process has committed meanwhile."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def revision(self) -> int:
        """The store's newest revision."""
        return self._counter("revision")

    def read(self, prefix: str) -> Snapshot:
        """All entries under `prefix`, at one revision. Raises ForeignStore."""
        self.check_in_place()
        self._db.execute("BEGIN")
        try:
            revision = self._counter("revision")
            rows = self._db.execute(
                f"SELECT {_ENTRY} FROM entry WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix + _LAST),
            )
            return Snapshot(revision, tuple(Entry(*row) for row in rows))
        finally:
            self._db.execute("COMMIT")

    def changes_after(self, revision: int, limit: int = 100_000) -> list[Revision]:
        """The revisions after `revision`, in order. Stops after the revision with which they have `limit` changes in
        all.

        Raises Compacted.
        """
        self._db.execute("BEGIN")
        try:
            if revision < self._counter("compacted"):
                raise Compacted(f"the changes after revision {revision} are gone")
            if revision > self._counter("revision"):
                raise Compacted(f"the metadata file hasn't reached revision {revision}: is it an older copy?")
            found: list[Revision] = []
            changes: list[Change] = []
            current = 0
            rows = self._db.execute(
                "SELECT revision, key, value, create_revision, lease FROM change WHERE revision > ?"
                " ORDER BY revision, sequence",
                (revision,),
            )
            for count, (number, key, value, created, lease) in enumerate(rows):
                if number != current:
                    if changes:
                        found.append(Revision(current, tuple(changes)))
                    if count >= limit:
                        return found
                    current, changes = number, []
                changes.append(
                    Change(key, None if value is None else Entry(key, value, number, created, LeaseId(lease)))
                )
            if changes:
                found.append(Revision(current, tuple(changes)))
            return found
        finally:
            self._db.execute("COMMIT")

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Commits all writes of the block together at its end, synced to disk if `durable`.

        Raises StoreUnavailable, ForeignStore, UnknownOutcome.
        """
        self.check_in_place()
        try:
            # This is set for each transaction, because the one before it may have set another value.
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the metadata file can't be written: {error}") from error
        try:
            yield
        except BaseException as error:
            if self._db.in_transaction:  # SQLite itself rolls back after some errors
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise StoreUnavailable(f"the metadata file can't be written: {error}") from error
            raise
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise UnknownOutcome(f"the metadata file couldn't be synced: {error}") from error

    def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        """Compares the guards and applies the writes, inside `transaction`. Raises LeaseExpired before any write."""
        failed = {guard.key: entry for guard in guards if not guard.holds(entry := self._entry(guard.key))}
        if failed:
            return Rejected(failed)
        for write in writes:
            if isinstance(write, Put) and write.lease != NO_LEASE and not self._lease_exists(write.lease):
                raise LeaseExpired(f"lease {write.lease} has ended")
        return Committed(self._write(writes))

    def grant(self, ttl_s: float) -> LeaseId:
        """A new lease of this process, inside `transaction`."""
        lease = self._counter("lease") + 1
        self._set_counter("lease", lease)
        ttl_ms = max(1, int(ttl_s * 1000))
        self._db.execute("INSERT INTO lease VALUES (?, ?, ?, ?)", (lease, self._owner, ttl_ms, self._now_ms() + ttl_ms))
        return LeaseId(lease)

    def keep_alive(self, lease: LeaseId) -> None:
        """Starts the lease's time anew, inside `transaction`, after `end_leases`. Raises LeaseExpired."""
        updated = self._db.execute("UPDATE lease SET ends_at_ms = ? + ttl_ms WHERE id = ?", (self._now_ms(), lease))
        if updated.rowcount == 0:
            raise LeaseExpired(f"lease {lease} has ended")

    def lease_left(self, lease: LeaseId) -> LeaseLeft:
        """How long the lease has left. Raises LeaseExpired."""
        row = self._db.execute("SELECT ends_at_ms FROM lease WHERE id = ?", (lease,)).fetchone()
        if row is None:
            raise LeaseExpired(f"lease {lease} has ended")
        left_ms = row[0] - self._now_ms()  # both are whole milliseconds, so the difference may be off by one
        return LeaseLeft((left_ms - 1) / 1000, (left_ms + 1) / 1000, term=0)

    def revoke(self, lease: LeaseId) -> None:
        """Ends a lease and deletes its keys, inside `transaction`."""
        self._db.execute("DELETE FROM lease WHERE id = ?", (lease,))
        keys = [
            row[0]
            for row in self._db.execute("SELECT key FROM entry WHERE lease = ? AND lease <> 0 ORDER BY key", (lease,))
        ]
        self._write([Delete(key) for key in keys])

    def overdue_leases(self, *, check_owners: bool = True) -> list[LeaseId]:
        """The leases whose time is over or (with `check_owners`) whose process is dead."""
        now = self._now_ms()
        overdue = []
        alive: dict[str, bool] = {self._owner: True}
        for lease, owner, ends_at_ms in self._db.execute(
            "SELECT id, owner, ends_at_ms FROM lease ORDER BY id"
        ).fetchall():
            if check_owners and owner not in alive:
                alive[owner] = self._owner_lives(owner)
            if ends_at_ms < now or not alive.get(owner, True):
                overdue.append(LeaseId(lease))
        return overdue

    def end_leases(self, *, check_owners: bool = True) -> None:
        """Ends each overdue lease in a revision of its own, inside `transaction`."""
        for lease in self.overdue_leases(check_owners=check_owners):
            self.revoke(lease)

    def alone(self) -> bool:
        """Whether this is the only process that has the metadata file open."""
        return len(os.listdir(self._owners)) <= 1

    def compact(self, revision: int) -> None:
        """Forgets the history up to and including `revision`, inside `transaction`."""
        self._set_counter("compacted", revision)
        self._db.execute("DELETE FROM change WHERE revision <= ?", (revision,))

    def _write_ahead(self) -> None:
        """Sets the file to write-ahead logging, in several attempts if need be.

        If several processes create the file at the same time, SQLite detects a deadlock. One of them then gets the
        error "database is locked" immediately, although its connection has a time-out for waiting.
        """
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def _create_schema(self, path: Path) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        self._db.execute("COMMIT")
        if version > SCHEMA_VERSION:
            raise StoreUnavailable(
                f"{path} was written by a newer version of Ottla (schema {version}); upgrade this Ottla"
            )

    def _entry(self, key: str) -> Entry | None:
        row = self._db.execute(f"SELECT {_ENTRY} FROM entry WHERE key = ?", (key,)).fetchone()
        return None if row is None else Entry(*row)

    def _write(self, writes: Sequence[Write]) -> int:
        """Applies writes as one revision, and returns it; returns the present revision if no write changes anything."""
        previous = self._counter("revision")
        revision = previous + 1
        sequence = 0
        for write in writes:
            row = self._db.execute("SELECT create_revision FROM entry WHERE key = ?", (write.key,)).fetchone()
            if isinstance(write, Put):
                created = revision if row is None else row[0]
                self._db.execute(
                    "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?)",
                    (write.key, write.value, revision, created, write.lease),
                )
                self._record(revision, sequence, write.key, write.value, created, write.lease)
            elif row is None:
                continue
            else:
                self._db.execute("DELETE FROM entry WHERE key = ?", (write.key,))
                self._record(revision, sequence, write.key, None, 0, NO_LEASE)
            sequence += 1
        if sequence == 0:
            return previous
        self._set_counter("revision", revision)
        if revision % _COMPACT_EVERY_REVISIONS == 0:
            self._forget_old_changes()
        return revision

    def _record(
        self, revision: int, sequence: int, key: str, value: bytes | None, created: int, lease: LeaseId
    ) -> None:
        self._db.execute(
            "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?)", (revision, sequence, key, value, created, lease)
        )

    def _forget_old_changes(self) -> None:
        found = self._db.execute(
            "SELECT revision FROM change ORDER BY revision DESC, sequence DESC LIMIT 1 OFFSET ?", (HISTORY_CHANGES,)
        ).fetchone()
        if found is not None:
            self.compact(found[0])

    def _lease_exists(self, lease: LeaseId) -> bool:
        return self._db.execute("SELECT 1 FROM lease WHERE id = ?", (lease,)).fetchone() is not None

    def _counter(self, name: str) -> int:
        return int(self._db.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()[0])

    def _set_counter(self, name: str, value: int) -> None:
        self._db.execute("UPDATE counter SET value = ? WHERE name = ?", (value, name))

    def _claim(self, path: Path) -> int:
        """Creates and locks the file by which other processes see that this one is alive. Returns its descriptor."""
        while True:
            file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            # Before the lock, another process may have taken the file for a dead process's and removed it.
            if path.exists() and path.stat().st_ino == os.fstat(file).st_ino:
                return file
            os.close(file)

    def _owner_lives(self, owner: str) -> bool:
        """Whether the owner's process is alive. The file of a dead owner is removed."""
        path = self._owners / owner
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(file)

    def _release_owner(self) -> None:
        (self._owners / self._owner).unlink(missing_ok=True)
        os.close(self._owner_file)


def _identity(path: Path) -> tuple[int, int] | None:
    """The file's device and inode, which another file of the same name doesn't have; None if there is no file.

    Raises StoreUnavailable.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(f"the state of {path} can't be read: {error}") from error
    return found.st_dev, found.st_ino
