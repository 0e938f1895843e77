"""Metrics of the cluster, from the controller's view of the metadata. Every broker whose process may become the
controller exports them, and so does a controller that runs in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from ottla.broker.exposition import Sample
from ottla.broker.metrics.metric import COUNTER, GAUGE, NO_LABELS, Metric, single
from ottla.broker.ports import WithControls, WithElections, WithImage
from ottla.metadata.model.brokers import BrokerState

if TYPE_CHECKING:
    from ottla.metadata.model.partitions import Partition

_CONTROLLER = "kafka.controller:type=KafkaController,name="


class Source(WithControls, WithElections, WithImage, Protocol):
    """The parts of a process that the metrics of the controller read. The process may be the active controller."""


def _by_state(holds: Callable[[Partition], bool]) -> Callable[[Source], Iterator[Sample]]:
    """A metric's value: on the active controller, the number of the cluster's partitions for which a condition holds; 0
    elsewhere."""

    def collect(broker: Source) -> Iterator[Sample]:
        count = 0
        if broker.controls:
            for states in broker.image.partitions.values():
                count += sum(1 for state in states.values() if holds(state))
        yield NO_LABELS, count

    return collect


def _brokers(registered: Callable[[BrokerState], bool]) -> Callable[[Source], Iterator[Sample]]:
    def collect(broker: Source) -> Iterator[Sample]:
        brokers = broker.image.brokers.values() if broker.controls else ()
        yield NO_LABELS, sum(1 for other in brokers if registered(other.state))

    return collect


METRICS: tuple[Metric[Source], ...] = (
    Metric(
        "kafka_controller_kafkacontroller_activecontrollercount", GAUGE,
        "1 if this process holds the controller's lease, else 0.",
        single(lambda broker: int(broker.controls)), _CONTROLLER + "ActiveControllerCount",
    ),
    Metric(
        "kafka_controller_kafkacontroller_offlinepartitionscount", GAUGE,
        "Partitions of the cluster without a leader; reported by the controller, 0 elsewhere.",
        _by_state(lambda state: state.leader < 0), _CONTROLLER + "OfflinePartitionsCount",
    ),
    Metric(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount", GAUGE,
        "Partitions of the cluster led by another replica than the preferred (first) one; reported by the controller, "
        "0 elsewhere.",
        _by_state(lambda state: state.leader != state.replicas[0]), _CONTROLLER + "PreferredReplicaImbalanceCount",
    ),
    Metric(
        "kafka_controller_kafkacontroller_globalpartitioncount", GAUGE,
        "Partitions of the cluster; reported by the controller, 0 elsewhere.",
        _by_state(lambda state: True), _CONTROLLER + "GlobalPartitionCount",
    ),
    Metric(
        "kafka_controller_kafkacontroller_globaltopiccount", GAUGE,
        "Topics of the cluster; reported by the controller, 0 elsewhere.",
        single(lambda broker: len(broker.image.topics) if broker.controls else 0), _CONTROLLER + "GlobalTopicCount",
    ),
    Metric(
        "kafka_controller_kafkacontroller_activebrokercount", GAUGE,
        "Registered brokers that may lead; reported by the controller, 0 elsewhere.",
        _brokers(lambda state: state is BrokerState.RUNNING), _CONTROLLER + "ActiveBrokerCount",
    ),
    Metric(
        "kafka_controller_kafkacontroller_fencedbrokercount", GAUGE,
        "Registered brokers that may not lead: starting or draining; reported by the controller, 0 elsewhere. A broker "
        "that is gone is not registered and not counted.",
        _brokers(lambda state: state is not BrokerState.RUNNING), _CONTROLLER + "FencedBrokerCount",
    ),
    Metric(
        "kafka_controller_controllerstats_leaderelections_total", COUNTER,
        "Leaders elected while this process was the controller. How long each took is not measured.",
        single(lambda broker: broker.elections.clean + broker.elections.unclean),
        "kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs",
    ),
    Metric(
        "kafka_controller_controllerstats_uncleanleaderelections_total", COUNTER,
        "Leaders elected from outside the in-sync replicas while this process was the controller.",
        single(lambda broker: broker.elections.unclean),
        "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
    ),
)  # fmt: skip
"""The metrics of the cluster."""
