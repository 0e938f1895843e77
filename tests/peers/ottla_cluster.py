"""A cluster of Ottla brokers for one test, each a process with ports of its own, and the faults that a test can cause.

The brokers share an embedded store, or an etcd of one member or three. On request, each of these paths has a proxy of
its own (`tests/peers/proxy.py`): the path to each broker's listener for brokers, the path to its listener for clients,
and the paths from each broker to each member of etcd.

A secured cluster has SASL_SSL on the listener for brokers, and on one more listener for clients, which has the proxies
of clients then. The listener CLIENTS, which the test itself asks, stays plain.
"""

from __future__ import annotations

import math
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ottla.net.streams import Connect, connect_tcp
from tests.peers.cluster_security import ClusterSecurity
from tests.peers.etcd import Etcd, etcd_cluster
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.proxy import Proxies, Route
from tests.peers.wire import Closed, Wire, free_port

Paths = Literal["brokers", "clients", "etcd"]
METADATA, FIND_COORDINATOR = 3, 10
ACTIVE_CONTROLLERS = "kafka_controller_kafkacontroller_activecontrollercount"


class OttlaCluster:
    """`size` brokers, all of them running and registered."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        etcd_members: int = 0,
        proxied: Collection[Paths] = (),
        secured: bool = False,
        **settings: str,
    ) -> None:
        """`settings` are for all brokers, with underscores for the dots; `{id}` in a value is the broker's id. A
        listener that only `listener_security_protocol_map` names gets an address at each broker, too."""
        self.etcd: list[Etcd] = []
        self.brokers: list[OttlaBroker] = []
        self.to_brokers: list[Route] = []  # in front of each broker's listener for brokers
        self.to_clients: list[Route] = []  # in front of each broker's listener for clients
        self.to_etcd: list[list[Route]] = []  # for each broker, one to each member of etcd
        self.http: list[str] = [f"127.0.0.1:{free_port()}" for _ in range(size)]
        self._proxies = Proxies() if proxied else None
        self._addresses = [(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}") for _ in range(size)]
        self._secured = [f"127.0.0.1:{free_port()}" for _ in range(size)] if secured else []
        self.security: ClusterSecurity | None = None
        protocols = settings.get("listener_security_protocol_map", "")
        further = {each.partition(":")[0] for each in protocols.split(",")} - {"CLIENTS", "BROKERS", ""}
        self._further = {name: [f"127.0.0.1:{free_port()}" for _ in range(size)] for name in sorted(further)}
        try:
            if etcd_members == 1:
                self.etcd = [Etcd(folder / "etcd")]
            elif etcd_members:
                self.etcd = etcd_cluster(folder / "etcd", etcd_members)
            self._open_paths(frozenset(proxied))
            if secured:
                self.security = ClusterSecurity(folder, self._store(folder))
            with ThreadPoolExecutor(size) as pool:  # a start spends most of its time waiting
                starts = [pool.submit(self._broker, folder, number, size, settings) for number in range(size)]
            self.brokers = [start.result() for start in starts if not start.exception()]  # without starts that failed
            for start in starts:
                start.result()
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def clients(self) -> dict[str, Any]:
        """The settings by which librdkafka's clients reach the brokers."""
        if self.security is None:
            return {"bootstrap.servers": self.bootstrap}
        told = [route.endpoint for route in self.to_clients] or self._secured
        return {"bootstrap.servers": ",".join(told), **self.security.librdkafka}

    @property
    def connect(self) -> Connect:
        """Opens a stream to the listener that `clients` names, in a task of an event loop."""
        return connect_tcp if self.security is None else self.security.connect()

    @property
    def between_brokers(self) -> list[str]:
        """The address of each broker's listener for brokers."""
        return [for_brokers for _, for_brokers in self._addresses]

    def further(self, listener: str) -> str:
        """The addresses of all brokers at a listener that isn't CLIENTS or BROKERS."""
        return ",".join(self._further[listener])

    # ---- roles and state

    def leader(self, topic: str, index: int) -> int:
        """The leader of a partition, by the newest epoch among the brokers that answer; −1 where there is no leader."""
        return int(self.partition(topic, index).leader_id)

    def partition(self, topic: str, index: int) -> Any:
        """A partition in the answer to Metadata, from the broker whose answer has the newest leader epoch."""
        message = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        found = [
            partition
            for answer in self._ask_all(METADATA, 9, message)
            for partition in answer.topics[0].partitions
            if partition.partition_index == index
        ]
        assert found, f"nobody knows {topic}-{index}"
        return max(found, key=lambda partition: partition.leader_epoch)

    def coordinator(self, group: str) -> int:
        """The coordinator of a group, from the first broker that knows it; −1 if no broker does."""
        asked = {"key_type": 0, "coordinator_keys": [group]}
        found = (answer.coordinators[0] for answer in self._ask_all(FIND_COORDINATOR, 4, asked))
        return next((int(each.node_id) for each in found if not each.error_code), -1)

    def controller(self) -> int:
        """The broker whose process is the active controller. Raises AssertionError if there is none for 20 s."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for number, broker in enumerate(self.brokers):
                if broker.running and self.metric(number, ACTIVE_CONTROLLERS) == 1:
                    return number
            time.sleep(0.1)
        raise AssertionError("nobody is the controller")

    def metric(self, number: int, name: str) -> float:
        """A broker's metric without labels; NaN if the broker doesn't answer or has no such metric."""
        return self.metrics(number).get(name, math.nan)

    def metrics(self, number: int) -> dict[str, float]:
        """All metrics of a broker, by their name with labels; empty if the broker doesn't answer."""
        try:
            with urllib.request.urlopen(f"http://{self.http[number]}/metrics", timeout=2) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and line[0] != "#"}

    def folder_of(self, number: int, topic: str, index: int) -> Path | None:
        """The folder of a broker's replica; None if it has no replica."""
        found = (folder / f"{topic}-{index}" for folder in self.brokers[number].log_directories)
        return next((folder for folder in found if folder.exists()), None)

    def wait(self, what: str, until: Callable[[], bool], seconds: float = 30.0) -> None:
        """Waits until `until` is true. Raises AssertionError, whose message names the awaited state, `what`."""
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
            time.sleep(0.05)

    def wait_until_in_sync(self, topic: str, partitions: int, replicas: int, seconds: float = 60.0) -> None:
        """Waits until each partition has a leader and at least `replicas` in-sync replicas."""

        def in_sync() -> bool:
            states = [self.partition(topic, index) for index in range(partitions)]
            return all(state.leader_id >= 0 and len(state.isr_nodes) >= replicas for state in states)

        self.wait(f"{topic} has {replicas} replicas in sync", in_sync, seconds)

    # ---- paths between them

    def cut(self, one: int, other: int) -> None:
        """Cuts the direction from broker `one` to broker `other`; the opposite direction stays open. In a secured
        cluster no proxy knows whose connection it forwards: no broker reaches `other`, and none is answered by `one`.
        """
        plain = self.security is None
        self.to_brokers[other].cut("there", client=f"broker-{one}-" if plain else "")
        self.to_brokers[one].cut("back", client=f"broker-{other}-" if plain else "")

    def heal(self) -> None:
        """Opens all paths."""
        for route in [*self.to_brokers, *self.to_clients, *(route for routes in self.to_etcd for route in routes)]:
            route.heal()

    # ---- start and stop

    def stop(self) -> None:
        """Sends SIGTERM to all brokers at the same time. Raises AssertionError if a broker doesn't end cleanly."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(OttlaBroker.stop, self.brokers))

    def close(self) -> None:
        """Kills all processes that still run."""
        for broker in self.brokers:
            broker.kill()
        for member in self.etcd:
            member.kill()
        if self._proxies is not None:
            self._proxies.close()

    def _open_paths(self, proxied: Collection[Paths]) -> None:
        for number, (for_clients, for_brokers) in enumerate(self._addresses):
            if "clients" in proxied:
                self.to_clients.append(self._route(self._secured[number] if self._secured else for_clients))
            if "brokers" in proxied:
                self.to_brokers.append(self._route(for_brokers))
            if "etcd" in proxied:
                self.to_etcd.append([self._route(member.endpoint) for member in self.etcd])

    def _broker(self, folder: Path, number: int, size: int, settings: dict[str, str]) -> OttlaBroker:
        replication = min(size, 3)
        own = {name: value.replace("{id}", str(number)) for name, value in settings.items()}
        for_clients, for_brokers = self._addresses[number]
        told_clients = self.to_clients[number].endpoint if self.to_clients and not self._secured else for_clients
        told_brokers = self.to_brokers[number].endpoint if self.to_brokers else for_brokers
        further = "".join(f",{name}://{addresses[number]}" for name, addresses in self._further.items())
        all_settings = {
            "node_id": str(number),
            "listeners": f"CLIENTS://{for_clients},BROKERS://{for_brokers}{further}",
            "advertised_listeners": f"CLIENTS://{told_clients},BROKERS://{told_brokers}{further}",
            "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter_broker_listener_name": "BROKERS",
            "ottla_metadata_store": self._store(folder, number),
            "ottla_http_listener": self.http[number],
            "offsets_topic_replication_factor": str(replication),
            "transaction_state_log_replication_factor": str(replication),
            "default_replication_factor": str(replication),
            "min_insync_replicas": str(max(replication - 1, 1)),
        }
        if self.security is not None:
            secured = self._secured[number]
            told = self.to_clients[number].endpoint if self.to_clients else secured
            all_settings |= self.security.settings("BROKERS")
            all_settings["listeners"] += f",SECURED://{secured}"
            all_settings["advertised_listeners"] += f",SECURED://{told}"
            all_settings["listener_security_protocol_map"] = "CLIENTS:PLAINTEXT,BROKERS:SASL_SSL,SECURED:SASL_SSL"
        return OttlaBroker(folder / f"broker-{number}", told_clients, **{**all_settings, **own})

    def _store(self, folder: Path, number: int | None = None) -> str:
        """The metadata store, as the settings of a broker name it, or of the test itself."""
        if not self.etcd:
            return f"embedded:{folder / 'metadata'}"
        routes = self.to_etcd[number] if self.to_etcd and number is not None else []
        return f"etcd:{','.join(peer.endpoint for peer in routes or self.etcd)}"

    def _route(self, upstream: str) -> Route:
        assert self._proxies is not None
        return self._proxies.route(upstream)

    def _ask_all(self, api_key: int, version: int, message: dict[str, Any]) -> Iterator[Any]:
        for broker in self.brokers:
            if broker.running:
                try:
                    with Wire(broker.bootstrap, 2.0) as wire:
                        yield wire.call(api_key, version, message)
                except (OSError, Closed):
                    continue


@contextmanager
def ottla_cluster(
    folder: Path,
    size: int = 3,
    etcd_members: int = 0,
    proxied: Collection[Paths] = (),
    secured: bool = False,
    /,
    **settings: str,
) -> Iterator[OttlaCluster]:
    """A cluster that is killed at the end."""
    cluster = OttlaCluster(folder, size, etcd_members, proxied, secured, **settings)
    try:
        yield cluster
    finally:
        cluster.close()
