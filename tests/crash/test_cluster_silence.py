"""Faults under load in which processes are silent, not dead: pauses, paths cut in one direction, a disk without room.

No process can distinguish a paused broker from a slow broker, or a cut path from a slow path. Acknowledged records must
be safe nevertheless, also while two brokers believe that they lead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.faults import LAG_S, LONG, PARTITIONS, ROUNDS, SESSION_S, Scene, scene
from tests.crash.volumes import small_volume
from tests.crash.workload import TOPIC
from tests.peers.etcd import leads
from tests.peers.proxy import Route
from tests.peers.wire import Closed, Wire

pytestmark = pytest.mark.timeout(1800 if LONG else 120)

INCREMENTAL_ALTER_CONFIGS = 44
BROKER, SET = 4, 0
ETCD_PAUSED_S = 60 if LONG else 10
ANEW = "metadata watch starts from a new snapshot"


def test_a_leader_is_paused_beyond_its_session(tmp_path: Path) -> None:
    """When the leader goes on, it still believes that it leads. It must not acknowledge records that clients sent
    during the pause."""
    with scene(tmp_path, ("elections", "truncations", "ISR changes", "registrations lost"), etcd_members=1) as here:
        for number in range(ROUNDS):
            index = number % PARTITIONS
            victim = here.leader(index)
            here.fault("SIGSTOP of a leader")
            here.cluster.brokers[victim].pause()
            here.moved(victim, index)
            here.goes_on()
            here.cluster.brokers[victim].go_on()
            here.goes_on()
            here.in_sync()


def test_a_follower_is_paused_for_less_than_its_session(tmp_path: Path) -> None:
    """Produce requests with acks=all wait for the follower, and no client sees an error."""
    with scene(tmp_path, (), etcd_members=1) as here:
        for number in range(ROUNDS):
            victim = here.follower(number % PARTITIONS)
            here.fault("SIGSTOP of a follower")
            here.cluster.brokers[victim].pause()
            time.sleep(SESSION_S / 2)
            here.cluster.brokers[victim].go_on()
            here.goes_on()


def test_all_of_etcd_is_paused(tmp_path: Path) -> None:
    """Producing and consuming go on undisturbed, however long etcd is paused."""
    with scene(tmp_path, ("elections", "ISR changes"), etcd_members=3) as here:
        here.fault("SIGSTOP of all members of etcd")
        for member in here.cluster.etcd:
            member.pause()
        before = len(here.workload.acknowledged)
        time.sleep(ETCD_PAUSED_S)
        assert len(here.workload.acknowledged) - before > 150 * ETCD_PAUSED_S
        for member in here.cluster.etcd:
            member.go_on()
        here.goes_on()
        here.in_sync()
        victim = here.leader()
        here.kill(victim)
        here.moved(victim)
        here.goes_on()


@pytest.mark.parametrize("deaf", ["follower", "leader"])
def test_one_does_not_hear_the_other(tmp_path: Path, deaf: str) -> None:
    """Either a follower's fetches arrive and the answers to them don't, or the fetches don't arrive. The follower
    leaves the ISR, and joins it again with all records."""
    with scene(tmp_path, ("ISR changes",), etcd_members=1, proxied=["brokers"]) as here:
        for number in range(ROUNDS):
            index = number % PARTITIONS
            leader, follower = here.leader(index), here.follower(index)
            speaker, hearer = (leader, follower) if deaf == "follower" else (follower, leader)
            here.fault(f"to the {deaf} cut")
            here.cluster.cut(speaker, hearer)
            here.cluster.wait(
                "the follower is out of the ISR",
                lambda index=index, follower=follower: (
                    follower not in here.cluster.partition("worked", index).isr_nodes
                ),
                3 * LAG_S + 10,
            )
            here.goes_on()
            here.cluster.heal()
            here.in_sync()


def test_a_broker_does_not_reach_etcd(tmp_path: Path) -> None:
    """The broker's session ends although the broker is alive and serves. Other brokers become the leaders of its
    partitions, and the broker learns of that by its watch."""
    with scene(tmp_path, ("elections", "ISR changes", "registrations lost"), etcd_members=3, proxied=["etcd"]) as here:
        for number in range(ROUNDS):
            index = number % PARTITIONS
            victim = here.leader(index)
            here.fault("broker to etcd cut")
            for route in here.cluster.to_etcd[victim]:
                route.cut("there")
            here.moved(victim, index)
            here.goes_on()
            here.cluster.heal()
            here.goes_on()
            here.in_sync()


def test_a_broker_does_not_hear_etcd(tmp_path: Path) -> None:
    """The broker gets no change of the metadata, whether or not its keep-alives reach etcd. Its partitions are served
    while the path from etcd is cut, and after the path is healed."""
    with scene(tmp_path, (), etcd_members=3, proxied=["etcd"]) as here:
        for number in range(ROUNDS):
            victim = here.leader(number % PARTITIONS)
            here.fault("etcd to broker cut")
            for route in here.cluster.to_etcd[victim]:
                route.cut("back")
            time.sleep(SESSION_S + 2)
            here.goes_on()
            here.cluster.heal()
            here.goes_on()
            here.in_sync()


def test_a_leader_of_all_that_does_not_hear_etcd_makes_way_for_its_clients(tmp_path: Path) -> None:
    """The broker believes that it leads all partitions, and librdkafka knows no other leader: librdkafka would wait for
    each acknowledgement for 30 s, and ask the same broker again. In some rounds the broker's keep-alives reach etcd all
    the time, so that no other broker is elected. Such rounds prove nothing, so up to eight more rounds follow."""
    lost = "registrations lost"
    with scene(tmp_path, ("elections", lost), etcd_members=3, proxied=["etcd"]) as here:
        for number in range(ROUNDS + 8):
            if number >= ROUNDS and here.sightings.summary(here.workload)[lost]:
                break
            victim = here.leader(number % PARTITIONS)
            drain(here, set(range(len(here.cluster.brokers))) - {victim})
            here.cluster.wait(
                "one broker leads everything",
                lambda victim=victim: all(here.leader(index) == victim for index in range(PARTITIONS)),
            )
            drain(here, ())
            here.in_sync()
            here.fault("etcd to the leader of all partitions cut")
            for route in here.cluster.to_etcd[victim]:
                route.cut("back")
            time.sleep(SESSION_S + 2)
            here.goes_on(seconds=15)
            here.cluster.heal()
            here.goes_on()
            here.in_sync()


def drain(here: Scene, brokers: Iterable[int]) -> None:
    """Drains these brokers of leaderships, and no other brokers."""
    config = {"name": "ottla.brokers.drained", "config_operation": SET, "value": ",".join(map(str, brokers))}
    resources = [{"resource_type": BROKER, "resource_name": "", "configs": [config]}]

    def taken() -> bool:
        try:
            with Wire(here.cluster.brokers[0].bootstrap) as wire:
                answer = wire.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False})
        except (OSError, Closed):  # the broker is back, but checks only once a second whether it may serve
            return False
        assert answer.responses[0].error_code == 0, answer
        return True

    here.cluster.wait("the first broker takes the setting", taken)


def test_etcd_is_slow_changes_its_leader_and_forgets(tmp_path: Path) -> None:
    """A slow etcd makes elections slower, and a new leader of etcd disturbs nothing. A controller that gets no answers
    from etcd is replaced. If etcd has compacted the changes that a broker missed, the broker begins from a new
    snapshot."""
    with scene(tmp_path, ("elections", "ISR changes"), etcd_members=3, proxied=["etcd"]) as here:
        for number in range(ROUNDS):
            here.fault("etcd slow")
            for route in all_to_etcd(here):
                route.delay(0.2, 0.2)
            here.goes_on(300)
            here.leader_dies(number % PARTITIONS)
            here.cluster.heal()

            here.fault("etcd's leader moved")
            old = next(member for member in here.cluster.etcd if leads(member))
            new = next(member for member in here.cluster.etcd if member is not old)
            old.control("move-leader", f"{new.status()['header']['member_id']:x}")
            here.cluster.wait("etcd's other leader", lambda new=new: leads(new))
            here.goes_on()

            here.fault("history of etcd forgotten")
            deaf = here.cluster.controller()
            other = (deaf + 1) % 3
            for route in here.cluster.to_etcd[deaf]:
                route.cut("back")
            admin = AdminClient({"bootstrap.servers": here.cluster.brokers[other].bootstrap, "log_level": 0})
            name = f"unheard-of-{number}"
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
            revision = new.status()["header"]["revision"]
            new.control("compact", str(revision))
            for route in here.cluster.to_etcd[deaf]:
                route.reset()
            here.cluster.heal()
            here.cluster.wait("a new snapshot", lambda deaf=deaf: here.sightings.logged(deaf, ANEW))
            here.goes_on()
            here.in_sync()


def test_clients_lose_brokers(tmp_path: Path) -> None:
    """Connections are reset, answers are delayed more than requests, and a leader's answers don't arrive."""
    with scene(tmp_path, ("ambiguous writes",), proxied=["clients"]) as here:
        for number in range(ROUNDS):
            here.fault("all connections of clients reset")
            assert sum(route.reset() for route in here.cluster.to_clients)
            here.goes_on()
            here.fault("answers to clients delayed")
            for route in here.cluster.to_clients:
                route.delay(0.02, 0.2)
            here.goes_on(50)
            here.cluster.heal()
            here.fault("answers of a leader to clients cut")
            route = here.cluster.to_clients[here.leader(number % PARTITIONS)]
            route.cut("back")
            time.sleep(5)
            route.reset()
            here.cluster.heal()
            here.goes_on()


def test_one_brokers_disk_is_full(tmp_path: Path) -> None:
    """Other brokers become the leaders of the full broker's partitions. The full broker's replicas can't append, and
    are out of the ISR until the disk has room again."""
    with small_volume(tmp_path / "volume", 48 << 20) as volume:
        directories = {"log_dirs": f"{tmp_path}/data-{{id}}", "log_index_size_max_bytes": "65536"}
        (tmp_path / "data-2").symlink_to(volume)
        explained = ("is full: nothing is appended",)
        with scene(tmp_path, ("elections", "ISR changes"), explained=explained, **directories) as here:
            for _ in range(ROUNDS):
                here.cluster.wait("broker 2 leads", lambda: 2 in leaders(here))
                here.fault("disk full")
                ballast = volume / "ballast"
                with open(ballast, "wb", buffering=0) as file:
                    try:
                        while True:
                            file.write(bytes(65536))
                    except OSError:
                        pass
                here.cluster.wait(
                    "other brokers lead the partitions that broker 2 led", lambda: 2 not in leaders(here), 15
                )
                here.goes_on(300)
                ballast.unlink()
                here.goes_on()
                here.in_sync()
                elect_preferred(here)


def test_one_brokers_log_directory_fails(tmp_path: Path) -> None:
    """Other brokers immediately become the leaders of the partitions in that directory. After the directory is back and
    the broker restarted, all its replicas get in sync again."""
    directories = {
        "log_dirs": f"{tmp_path}/one-{{id}},{tmp_path}/two-{{id}}",
        "replica_high_watermark_checkpoint_interval_ms": "300",
    }
    explained = ("has failed: ", "can't be opened", "offset out of range")
    with scene(tmp_path, ("elections", "ISR changes"), explained=explained, **directories) as here:
        for _ in range(ROUNDS):
            here.cluster.wait("broker 2 leads", lambda: 2 in leaders(here))
            here.fault("log directory failed")
            lost = next(folder for folder in (tmp_path / "one-2", tmp_path / "two-2") if holds_led(here, folder))
            led = [index for index in range(PARTITIONS) if (lost / f"{TOPIC}-{index}").exists()]
            aside = lost.rename(tmp_path / "aside")
            lost.write_text("not a directory")
            here.cluster.wait(
                "other brokers lead the partitions of the lost directory",
                lambda led=led: all(leaders(here)[index] != 2 for index in led),
                15,
            )
            here.goes_on()
            here.cluster.brokers[2].stop()
            lost.unlink()
            aside.rename(lost)
            here.cluster.brokers[2].start_again()
            here.in_sync()
            elect_preferred(here)


def all_to_etcd(here: Scene) -> list[Route]:
    return [route for routes in here.cluster.to_etcd for route in routes]


def holds_led(here: Scene, folder: Path) -> bool:
    """Whether broker 2 leads a partition whose replica is in this folder."""
    led = leaders(here)
    return any(led[index] == 2 for index in range(PARTITIONS) if (folder / f"{TOPIC}-{index}").exists())


def leaders(here: Scene) -> list[int]:
    return [here.cluster.leader(TOPIC, index) for index in range(PARTITIONS)]


def elect_preferred(here: Scene) -> None:
    """Elects the preferred leader, the first replica, of every partition."""
    admin = AdminClient({"bootstrap.servers": here.cluster.bootstrap, "log_level": 0})
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    admin.elect_leaders(ElectionType.PREFERRED, partitions).result(30)
