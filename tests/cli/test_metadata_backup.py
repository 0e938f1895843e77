"""`ottla metadata backup`, `restore` and `go-without`: what they print, and the requests that they refuse in one
line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.model.brokers import Broker
from ottla.metadata.model.cluster import Cluster
from ottla.metadata.model.settings import Feature
from ottla.metadata.store import Put
from tests.cli.conftest import Result, run_forked

Environment = dict[str, str]


def fill(path: Path, cluster_id: str = "abc", *brokers: int) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(path)
        lease = await store.grant(600)
        registered = [Put(keys.broker(broker), Broker(broker, 0, {}).encode(), lease) for broker in brokers]
        features = [Put(keys.feature(f"f{number}"), Feature(1).encode()) for number in range(3)]
        await store.transact([], [Put(keys.cluster.key, Cluster(cluster_id).encode()), *features, *registered])
        await store.close()

    asyncio.run(run())


def run(environment: Environment, *arguments: str) -> Result:
    return run_forked(("metadata", *arguments), b"", environment)


@pytest.fixture
def backup(tmp_path: Path, environment: Environment) -> str:
    """A backup of a store with brokers 1 and 2."""
    fill(tmp_path / "store", "abc", 1, 2)
    made = run(environment, "backup", str(tmp_path / "backup"), "--store", str(tmp_path / "store"))
    assert made.code == 0, made.stderr
    assert "4 keys at revision 1" in made.stdout
    return str(tmp_path / "backup")


def test_there_and_back(tmp_path: Path, environment: Environment, backup: str) -> None:
    store = ("--store", str(tmp_path / "new" / "store"))
    restored = run(environment, "restore", backup, *store)
    assert restored.code == 0, restored.stderr
    assert "Cluster abc, generation 1" in restored.stdout
    assert "when all of these brokers have reported: 1, 2." in restored.stdout
    assert run(environment, "go-without", "2", "--json", *store).json == {"awaited": [1]}
    again = run(environment, "restore", backup, "--replace", "--gone", "1", "--json", *store)
    assert again.json == {
        "cluster_id": "abc", "generation": 2, "keys": 4, "backup_revision": 1, "awaited": [2],
    }  # fmt: skip
    unknown = run(environment, "go-without", "7", *store)
    assert (unknown.code, unknown.stderr) == (
        4,
        "error: the restored cluster doesn't wait for broker 7. It waits for brokers: 2.\n",
    )


@pytest.mark.parametrize("content", [None, b"", b"{}\n", b"\xff", b"hello", b'{"ottla-metadata-backup":1}\n'])
def test_what_is_no_backup_is_refused(tmp_path: Path, environment: Environment, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    refused = run(environment, "restore", str(tmp_path / "file"), "--store", str(tmp_path / "store"))
    code = 4 if content is None else 1
    assert (refused.code, refused.stdout, refused.stderr.count("\n")) == (code, "", 1), refused.stderr
    assert not (tmp_path / "store").exists()


def test_a_store_that_holds_something_is_refused(tmp_path: Path, environment: Environment, backup: str) -> None:
    for cluster_id, brokers, words in (
        ("abc", (1,), "broker 1 runs on the metadata store: stop its process before the restore"),
        ("other", (), "the backup is of cluster abc, and the store holds cluster other"),
        ("abc", (), "isn't empty: it holds 4 keys. --replace drops its content"),
    ):
        path = tmp_path / f"{cluster_id}-{len(brokers)}"
        fill(path, cluster_id, *brokers)
        refused = run(environment, "restore", backup, "--store", str(path))
        assert (refused.code, refused.stderr.count("\n")) == (1, 1), refused.stderr
        assert words in refused.stderr


def test_a_backup_overwrites_only_when_told(tmp_path: Path, environment: Environment, backup: str) -> None:
    before = Path(backup).read_text()
    store = ("--store", str(tmp_path / "store"))
    refused = run(environment, "backup", backup, *store)
    assert (refused.code, refused.stderr.count("\n")) == (1, 1)
    assert "--overwrite" in refused.stderr
    assert run(environment, "backup", backup, "--overwrite", "--json", *store).json["keys"] == 4
    assert Path(backup).read_text().splitlines()[1:-1] == before.splitlines()[1:-1]
    nowhere = run(environment, "backup", str(tmp_path / "no" / "file"), *store)
    assert (nowhere.code, nowhere.stderr.count("\n")) == (1, 1)
    assert sorted(path.name for path in tmp_path.glob("backup*")) == ["backup"]
