"""The contract of the disk port: every test runs on the real and on the simulated disk."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from ottla.broker.log.disk import Disk, RealDisk
from tests.simulation.disk import SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else SimulatedDisk(Random(0))


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    disk.make_directory(str(tmp_path))
    return str(tmp_path)


def test_files_are_read_and_written_at_positions(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/a")
    file = disk.open(f"{root}/a", create=True)
    file.pwrite(b"hello", 3)
    file.pwrite(memoryview(b"HE"), 3)
    assert file.pread(100, 0) == b"\0\0\0HEllo"
    assert file.pread(2, 4) == b"El"
    assert file.pread(2, 100) == b""
    file.truncate(4)
    file.fsync()
    assert disk.open(f"{root}/a").pread(10, 0) == b"\0\0\0H"


def test_an_open_file_outlives_its_name(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.pwrite(b"x", 0)
    disk.rename(f"{root}/a", f"{root}/b")
    disk.remove(f"{root}/b")
    disk.remove(f"{root}/b")
    assert not disk.exists(f"{root}/b")
    assert file.pread(1, 0) == b"x"


def test_small_files_are_replaced_whole(disk: Disk, root: str) -> None:
    for content in (b"first", b"2", b""):
        disk.write_atomically(f"{root}/a", content)
        assert disk.read(f"{root}/a") == content
    assert [entry.name for entry in disk.list(root)] == ["a"]


def test_directories(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/d/e")
    disk.make_directory(f"{root}/d/e")
    disk.write_atomically(f"{root}/d/f", b"123", fsync=False)
    found = {entry.name: (entry.size, entry.is_directory) for entry in disk.list(f"{root}/d")}
    assert found["f"] == (3, False)
    assert found["e"][1]
    with pytest.raises(OSError, match=r".*") as caught:
        disk.remove(f"{root}/d")
    assert caught.value.errno in (errno.EISDIR, errno.EPERM)
    disk.fsync_directory(f"{root}/d")
    disk.remove_tree(f"{root}/d")
    assert not disk.exists(f"{root}/d")
    with pytest.raises(FileNotFoundError):
        disk.list(f"{root}/d")


def test_one_lock(disk: Disk, root: str) -> None:
    held = disk.lock(f"{root}/l")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/l")
    del held
    assert disk.lock(f"{root}/l") is not None


def test_room(disk: Disk, root: str) -> None:
    total, usable = disk.free_bytes(root)
    assert 0 <= usable <= total
