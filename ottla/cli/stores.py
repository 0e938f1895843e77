"""Opens the metadata store that a broker's settings name, for the broker's process and for `ottla metadata`.

A store's module is imported only if the settings name that store: etcd's client needs grpc, which would add 15 MB to a
broker's memory.
"""

from __future__ import annotations

from pathlib import Path

from ottla.metadata.store import Store, StoreUnavailable
from ottla.settings.config import BrokerConfig

METADATA_FILE = "metadata.sqlite"
ETCD = "etcd:"


def on_etcd(config: BrokerConfig) -> bool:
    """Whether the store is etcd, and not the embedded store's file."""
    return config.get_str("ottla.metadata.store").startswith(ETCD)


def metadata_path(config: BrokerConfig) -> Path:
    """The path of the embedded store's file: from `ottla.metadata.store`, or by default in the first log directory."""
    path = config.get_str("ottla.metadata.store").partition(":")[2]
    return Path(path) if path else Path(config.log_dirs[0]) / METADATA_FILE


async def open_store(config: BrokerConfig) -> Store:
    """The store, for the running event loop. A missing file is created. Raises StoreUnavailable, OSError."""
    if on_etcd(config):
        return _etcd(config)
    from ottla.metadata.embedded import EmbeddedStore

    path = metadata_path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    return await EmbeddedStore.open(path)


def _etcd(config: BrokerConfig) -> Store:
    try:
        from ottla.metadata.etcd import EtcdStore
        from ottla.metadata.etcd_connection import EtcdAddress
    except ImportError as error:
        raise StoreUnavailable(
            f"etcd needs a package that isn't installed ({error}): pip install 'ottla[broker]'"
        ) from error

    def file(name: str) -> Path | None:
        value = config.get_str(name)
        return Path(value) if value else None

    address = EtcdAddress(
        tuple(config.get_str("ottla.metadata.store").removeprefix(ETCD).split(",")),
        config.get_str("ottla.metadata.etcd.user"),
        file("ottla.metadata.etcd.password.file"),
        config.get_bool("ottla.metadata.etcd.tls"),
        file("ottla.metadata.etcd.tls.ca.file"),
        file("ottla.metadata.etcd.tls.certificate.file"),
        file("ottla.metadata.etcd.tls.key.file"),
    )
    timeout_s = config.get_int("ottla.metadata.etcd.timeout.ms") / 1000
    return EtcdStore(address, config.get_str("ottla.metadata.etcd.prefix"), timeout_s)
