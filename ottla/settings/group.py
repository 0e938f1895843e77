"""Settings of one group.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, OneOf, Pattern, Range, Setting

_RESET = Pattern(r"latest|earliest|by_duration:P[0-9A-Z.]+", "latest, earliest or by_duration:PnDTnHnMn.nS")
_CONSUMER = "only the classic group protocol is served yet"
_SHARE = "there are no share groups yet"
_STREAMS = "only the classic group protocol is served yet"

SETTINGS = (
    Setting(
        "consumer.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Session time-out of a consumer group's members.",
        bounds=Range(1), instead=_CONSUMER, synonyms=("group.consumer.session.timeout.ms",),
    ),
    Setting(
        "consumer.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Time between two heartbeats of a consumer group's members.", bounds=Range(1), instead=_CONSUMER,
        synonyms=("group.consumer.heartbeat.interval.ms",),
    ),
    Setting(
        "consumer.assignment.interval.ms", Kind.INT, "1000", Importance.MEDIUM,
        "Shortest time between two assignments of a consumer group.", bounds=Range(0), instead=_CONSUMER,
        synonyms=("group.consumer.assignment.interval.ms",),
    ),
    Setting(
        "share.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Session time-out of a share group's members.",
        bounds=Range(1), instead=_SHARE, synonyms=("group.share.session.timeout.ms",),
    ),
    Setting(
        "share.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Time between two heartbeats of a share group's members.",
        bounds=Range(1), instead=_SHARE, synonyms=("group.share.heartbeat.interval.ms",),
    ),
    Setting(
        "share.record.lock.duration.ms", Kind.INT, "30000", Importance.MEDIUM,
        "How long a record stays locked for the consumer that got it.", bounds=Range(1000), instead=_SHARE,
        synonyms=("group.share.record.lock.duration.ms",),
    ),
    Setting(
        "share.delivery.count.limit", Kind.INT, "5", Importance.MEDIUM,
        "How many times a record is delivered at most.", bounds=Range(2), instead=_SHARE,
        synonyms=("group.share.delivery.count.limit",),
    ),
    Setting(
        "share.partition.max.record.locks", Kind.INT, "2000", Importance.MEDIUM,
        "Most records of a partition that are locked at once.", bounds=Range(100), instead=_SHARE,
        synonyms=("group.share.partition.max.record.locks",),
    ),
    Setting(
        "share.auto.offset.reset", Kind.STRING, "latest", Importance.MEDIUM,
        "Offset at which a new share group begins.", bounds=_RESET, instead=_SHARE,
    ),
    Setting(
        "share.isolation.level", Kind.STRING, "read_uncommitted", Importance.MEDIUM,
        "Whether consumers see records of open transactions.", bounds=OneOf(("read_committed", "read_uncommitted")),
        instead=_SHARE,
    ),
    Setting(
        "share.renew.acknowledge.enable", Kind.BOOLEAN, "true", Importance.MEDIUM,
        "Allow consumers to renew their lock of a record.", instead=_SHARE,
    ),
    Setting(
        "share.assignment.interval.ms", Kind.INT, "1000", Importance.MEDIUM,
        "Shortest time between two assignments of a share group.", bounds=Range(0), instead=_SHARE,
        synonyms=("group.share.assignment.interval.ms",),
    ),
    Setting(
        "streams.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Session time-out of a streams group's members.",
        bounds=Range(1), instead=_STREAMS, synonyms=("group.streams.session.timeout.ms",),
    ),
    Setting(
        "streams.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Time between two heartbeats of a streams group's members.", bounds=Range(1), instead=_STREAMS,
        synonyms=("group.streams.heartbeat.interval.ms",),
    ),
    Setting(
        "streams.num.standby.replicas", Kind.INT, "0", Importance.MEDIUM,
        "Standby replicas of each task.", bounds=Range(0), instead=_STREAMS,
        synonyms=("group.streams.num.standby.replicas",),
    ),
    Setting(
        "streams.initial.rebalance.delay.ms", Kind.INT, "3000", Importance.MEDIUM,
        "How long a new streams group waits for more members.", bounds=Range(0), instead=_STREAMS,
        synonyms=("group.streams.initial.rebalance.delay.ms",),
    ),
    Setting(
        "streams.assignment.interval.ms", Kind.INT, "1000", Importance.MEDIUM,
        "Shortest time between two assignments of a streams group.", bounds=Range(0), instead=_STREAMS,
        synonyms=("group.streams.assignment.interval.ms",),
    ),
)
