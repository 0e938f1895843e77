"""The scripts of the snapshots' Job, unchanged, on a small volume: which snapshots are kept, and when the others are
deleted.

The programs that need an etcd are stand-ins, which write a given number of bytes, as long as the volume has room.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.operator.plan.snapshots import BACKUP_SCRIPT, SAVE_SCRIPT

_FREE = 'used=$(du -ks "$FOLDER" | cut -f 1); free=$((VOLUME_KIB - used))\n'
_WRITE = """
if [ "$wanted" -gt "$free" ]; then
  head -c "${free}K" /dev/zero > "$to"; echo "no space left on device" >&2; exit 1
fi
head -c "${wanted}K" /dev/zero > "$to"
"""
STAND_INS = {
    "df": _FREE + 'echo header; echo "disk $VOLUME_KIB $used $free 1% /"',
    "date": "cat $CLOCK",
    "ottla": '[ -z "$AWAY" ] || exit 1; head -c "${METADATA_KIB}K" /dev/zero > "$3"',
    "cp": _FREE + 'wanted=$(du -k "$1" | cut -f 1); to=$2' + _WRITE,
    # This stand-in reports the size of its database, and first writes to a file with another name.
    "etcdctl": _FREE
    + '[ -z "$AWAY" ] || exit 1; for last; do :; done; [ "$last" = .part ] || '
    + """{ echo '[{"Endpoint":"x","Status":{"dbSize":'$((ETCD_KIB * 1024))',"dbSizeInUse":7}}]'; exit; }\n"""
    + "wanted=$ETCD_KIB; to=$last.part"
    + _WRITE
    + 'mv "$to" "$last"',
}


@dataclass
class Volume:
    """The volume of the snapshots, and the Job that writes to it."""

    path: Path
    size_kib: int
    etcd_kib: int = 2000
    metadata_kib: int = 40
    keep: int = 4
    hour: int = 0
    away: bool = False  # whether etcd is away
    said: str = ""

    def __post_init__(self) -> None:
        (self.path / "bin").mkdir()
        (self.path / "volume" / "lost+found").mkdir(parents=True)
        for name, text in STAND_INS.items():
            program = self.path / "bin" / name
            program.write_text(f"#!{shutil.which('sh')}\n{text}\n")
            program.chmod(0o755)

    def job(self) -> bool:
        """Runs the Job an hour later, with its three attempts. Returns whether one of them succeeded."""
        self.hour += 1
        (self.path / "clock").write_text(f"2026-05-01T{self.hour:02}-00-00\n")
        return any(self._try() for _ in range(3))

    def _try(self) -> bool:
        environment = {
            "PATH": f"{self.path / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.path),
            "FOLDER": str(self.path / "volume"),
            "CLOCK": str(self.path / "clock"),
            "KEEP": str(self.keep),
            "ENDPOINTS": "http://k-etcd-0:2379 http://k-etcd-1:2379",
            "OPTIONS": "",
            "VOLUME_KIB": str(self.size_kib),
            "ETCD_KIB": str(self.etcd_kib),
            "METADATA_KIB": str(self.metadata_kib),
            "AWAY": "yes" if self.away else "",
        }
        for script in (BACKUP_SCRIPT, SAVE_SCRIPT):
            ran = subprocess.run(
                ["/bin/sh", "-c", script], env=environment, cwd="/", capture_output=True, text=True, timeout=60
            )
            self.said = ran.stderr
            if ran.returncode:
                return False
        return True

    def hours(self, kind: str) -> list[int]:
        """The hours of the existing snapshots of this kind."""
        return sorted(int(each.name[11:13]) for each in (self.path / "volume").glob(f"*.{kind}"))

    def left_over(self) -> list[str]:
        return [each.name for each in (self.path / "volume").iterdir() if each.name.startswith(".")]


def test_as_many_are_kept_as_asked_for(tmp_path: Path) -> None:
    volume = Volume(tmp_path, size_kib=100_000)
    assert all(volume.job() for _ in range(7))
    assert volume.hours("etcd") == volume.hours("metadata") == [4, 5, 6, 7]
    assert volume.left_over() == []


def test_a_volume_that_is_full_makes_room_for_the_next_snapshot(tmp_path: Path) -> None:
    """Before the fix, snapshots were pruned only after a success, so a full volume stayed full."""
    volume = Volume(tmp_path, size_kib=10_000, keep=48)
    for hour in range(1, 20):
        assert volume.job(), (hour, volume.said)
        assert volume.hours("etcd")[-1] == volume.hours("metadata")[-1] == hour
    assert len(volume.hours("etcd")) >= 2
    assert volume.left_over() == []


def test_an_etcd_that_has_grown_finds_room(tmp_path: Path) -> None:
    volume = Volume(tmp_path, size_kib=10_000, keep=48)
    for _ in range(6):
        assert volume.job()
    volume.etcd_kib = 7000
    assert volume.job()
    assert volume.hours("etcd") == [6, 7], "all other snapshots had to make room"


@pytest.mark.parametrize("keep", [1, 2, 48])
def test_the_newest_stays_where_the_next_one_finds_no_room(tmp_path: Path, keep: int) -> None:
    volume = Volume(tmp_path, size_kib=10_000, keep=keep)
    assert volume.job()
    volume.etcd_kib = 9000
    assert not volume.job()
    assert not volume.job()
    assert volume.hours("etcd") == [1]
    assert volume.hours("metadata") == [3], "the small backup of the metadata is still written"
    assert "raise metadata.etcd.snapshots.storage.size" in volume.said
    assert "no space left" in volume.said


def test_what_a_killed_job_left_behind_goes(tmp_path: Path) -> None:
    volume = Volume(tmp_path, size_kib=10_000)
    assert volume.job()
    (tmp_path / "volume" / ".part.part").write_bytes(bytes(7_800_000))
    assert volume.job()
    assert volume.hours("etcd") == [1, 2]
    assert volume.left_over() == []


def test_an_etcd_that_is_away_costs_no_snapshot(tmp_path: Path) -> None:
    volume = Volume(tmp_path, size_kib=10_000)
    for _ in range(4):
        assert volume.job()
    volume.away = True
    for _ in range(10):
        assert not volume.job()
    assert volume.hours("etcd") == volume.hours("metadata") == [1, 2, 3, 4]
    volume.away = False
    assert volume.job()
    assert volume.hours("etcd")[-1] == 15
