"""Every log directory has a file with the newest lineage word, a random string by which the broker recognises its
metadata store (`ottla.metadata.lineage`). If the files differ, the one with the newest word counts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ottla.broker.lineage_file import keep_known, read_known
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import RealDisk
from ottla.metadata.lineage import Known
from ottla.metadata.own_store import OwnStore
from ottla.storage.names import LINEAGE
from tests.unit.broker.log.workbench import ALONE
from tests.unit.metadata.faulty import FaultyStore


def directories(folder: Path, disk: RealDisk | None = None) -> LogDirectories:
    return LogDirectories([str(folder / "a"), str(folder / "b")], lambda: 1000, ALONE, disk=disk)


def read(folder: Path) -> Known | None:
    """The newest word that a starting broker finds in its log directories."""
    logs = directories(folder)
    try:
        return read_known(logs)
    finally:
        logs.close()


def write(folder: Path, *learned: Known) -> None:
    """Writes these words to the log directories, as a broker does that sees them in its store one after the other."""

    async def keep() -> None:
        store = OwnStore(FaultyStore(None), None)  # type: ignore[arg-type]
        logs = directories(folder)
        keeping = asyncio.create_task(keep_known(store, logs))
        for known in learned:
            store.known = known
            store._learned.set()
            for _ in range(1000):
                if read_known(logs) == known:
                    break
                await asyncio.sleep(0.01)
        keeping.cancel()
        logs.close()

    asyncio.run(asyncio.wait_for(keep(), 20))


def test_what_was_seen_last_is_known_after_a_restart(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    write(tmp_path, Known("c", 0, 1, "aaaaaaaa"), Known("c", 0, 2, "bbbbbbbb"))
    assert read(tmp_path) == Known("c", 0, 2, "bbbbbbbb")


def test_a_directory_that_was_replaced_hides_nothing(tmp_path: Path) -> None:
    write(tmp_path, Known("c", 1, 7, "aaaaaaaa"))
    (tmp_path / "a" / LINEAGE).unlink()
    assert read(tmp_path) == Known("c", 1, 7, "aaaaaaaa")


def test_the_newest_copy_counts_and_a_damaged_one_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, Known("c", 1, 7, "aaaaaaaa"))
    kept = (tmp_path / "a" / LINEAGE).read_bytes()
    write(tmp_path, Known("c", 2, 3, "bbbbbbbb"))
    (tmp_path / "a" / LINEAGE).write_bytes(kept)
    assert read(tmp_path) == Known("c", 2, 3, "bbbbbbbb")
    (tmp_path / "b" / LINEAGE).write_bytes(b"{")
    assert read(tmp_path) == Known("c", 1, 7, "aaaaaaaa")
    assert "is damaged" in caplog.text


def test_a_directory_whose_copy_cant_be_read_has_failed(tmp_path: Path) -> None:
    class Failing(RealDisk):
        def read(self, path: str) -> bytes:
            if path == str(tmp_path / "a" / LINEAGE):
                raise OSError(5, "I/O error", path)
            return super().read(path)

    write(tmp_path, Known("c", 1, 7, "aaaaaaaa"))
    logs = directories(tmp_path, Failing())
    assert read_known(logs) == Known("c", 1, 7, "aaaaaaaa")
    assert list(logs.failed) == [str(tmp_path / "a")]


def test_of_two_directories_the_later_restore_counts_whatever_its_clock_said(tmp_path: Path) -> None:
    earlier = Known("c", 1, 7, "aaaaaaaa", 2000, "AAAAAAAA")
    later = Known("c", 1, 3, "bbbbbbbb", 1000, "BBBBBBBB", ("AAAAAAAA",))
    write(tmp_path, earlier)
    stale = (tmp_path / "a" / LINEAGE).read_bytes()
    write(tmp_path, later)
    newest = (tmp_path / "a" / LINEAGE).read_bytes()
    for folder in "ab":
        (tmp_path / folder / LINEAGE).write_bytes(stale)
        assert read(tmp_path) == later
        (tmp_path / folder / LINEAGE).write_bytes(newest)


def test_what_an_earlier_version_kept_is_read(tmp_path: Path) -> None:
    write(tmp_path, Known("c", 1, 7, "aaaaaaaa", 2000))
    for folder in "ab":
        file = tmp_path / folder / LINEAGE
        file.write_text(
            json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k not in ("restore", "past")})
        )
    assert read(tmp_path) == Known("c", 1, 7, "aaaaaaaa", 2000)
