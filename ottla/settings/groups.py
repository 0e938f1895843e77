"""Consumer groups and their coordinator; share and streams groups.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Members, OneOf, Range, Setting, Update

_THREADS = "one event loop serves everything, so thread counts have no meaning"
_CONSUMER = "only the classic group protocol is served yet"
_STREAMS = "only the classic group protocol is served yet"
_SHARE = "there are no share groups yet"

SETTINGS = (
    Setting(
        "group.coordinator.rebalance.protocols", Kind.LIST, "classic,consumer,streams", Importance.MEDIUM,
        "Kinds of groups that are served.",
        bounds=Members(("consumer", "classic", "share", "streams"), may_be_empty=False),
        instead="only the classic protocol is served",
    ),
    Setting(
        "group.coordinator.threads", Kind.INT, "4", Importance.HIGH,
        "Threads of the coordinator.", bounds=Range(1), instead=_THREADS,
    ),
    Setting(
        "group.coordinator.background.threads", Kind.INT, "2", Importance.HIGH,
        "Threads of the coordinator for background work.", bounds=Range(1), instead=_THREADS,
    ),
    Setting(
        "group.coordinator.append.linger.ms", Kind.INT, "-1", Importance.MEDIUM,
        "How long the coordinator gathers writes for one append; with -1 it adapts this time to the load.",
        bounds=Range(-1),
        instead="the coordinator writes each decision at once",
    ),
    Setting(
        "group.coordinator.cached.buffer.max.bytes", Kind.INT, "1048588", Importance.MEDIUM,
        "Largest buffer that the coordinator keeps for its next write.", bounds=Range(524288),
        update=Update.CLUSTER_WIDE,
        instead="buffers of the coordinator are not pooled",
    ),
    Setting(
        "offsets.commit.timeout.ms", Kind.INT, "5000", Importance.HIGH,
        "Longest wait until a commit is replicated.", bounds=Range(1),
    ),
    Setting(
        "offsets.load.buffer.size", Kind.INT, "5242880", Importance.HIGH,
        "Bytes that are read at once when a coordinator loads a partition of __consumer_offsets.", bounds=Range(1),
    ),
    Setting(
        "offsets.topic.replication.factor", Kind.SHORT, "3", Importance.HIGH,
        "Replicas of __consumer_offsets.", bounds=Range(1),
    ),
    Setting(
        "offsets.topic.num.partitions", Kind.INT, "50", Importance.HIGH,
        "Partitions of __consumer_offsets.", bounds=Range(1),
    ),
    Setting(
        "offsets.topic.segment.bytes", Kind.INT, "104857600", Importance.HIGH,
        "Segment size of __consumer_offsets.", bounds=Range(1),
    ),
    Setting(
        "offsets.topic.compression.codec", Kind.INT, "0", Importance.HIGH,
        "Codec of __consumer_offsets, by number.",
    ),
    Setting(
        "offset.metadata.max.bytes", Kind.INT, "4096", Importance.HIGH,
        "Largest metadata that may come with a committed offset.",
    ),
    Setting(
        "offsets.retention.minutes", Kind.INT, "10080", Importance.HIGH,
        "How long the offsets of an empty group are kept.", bounds=Range(1),
    ),
    Setting(
        "offsets.retention.check.interval.ms", Kind.LONG, "600000", Importance.HIGH,
        "Time between two searches for expired offsets.", bounds=Range(1),
    ),
    Setting(
        "group.min.session.timeout.ms", Kind.INT, "6000", Importance.MEDIUM,
        "Shortest session time-out a classic member may ask for.",
    ),
    Setting(
        "group.max.session.timeout.ms", Kind.INT, "1800000", Importance.MEDIUM,
        "Longest session time-out a classic member may ask for.",
    ),
    Setting(
        "group.initial.rebalance.delay.ms", Kind.INT, "3000", Importance.MEDIUM,
        "How long a new classic group waits for more members.",
    ),
    Setting(
        "group.max.size", Kind.INT, "2147483647", Importance.MEDIUM,
        "Most members that a classic group may have.", bounds=Range(1),
    ),
    Setting(
        "group.consumer.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Session time-out of consumer groups' members.", bounds=Range(1), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Shortest session time-out that a consumer group may set.", bounds=Range(1), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.max.session.timeout.ms", Kind.INT, "60000", Importance.MEDIUM,
        "Longest session time-out that a consumer group may set.", bounds=Range(1), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Time between two heartbeats of consumer groups' members.", bounds=Range(1), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Shortest heartbeat interval that a consumer group may set.", bounds=Range(1), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms", Kind.INT, "15000", Importance.MEDIUM,
        "Longest heartbeat interval that a consumer group may set.", bounds=Range(1), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.max.size", Kind.INT, "2147483647", Importance.MEDIUM,
        "Most members that a consumer group may have.", bounds=Range(1), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.assignors", Kind.LIST, "uniform,range", Importance.MEDIUM,
        "Assignors of consumer groups on the broker's side, the first being the default.",
        bounds=Members(may_be_empty=False),
        instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.migration.policy", Kind.STRING, "bidirectional", Importance.MEDIUM,
        "Whether a classic group may become a consumer group, and a consumer group a classic group.",
        bounds=OneOf(("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"), ignore_case=True), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.assignment.interval.ms", Kind.INT, "1000", Importance.MEDIUM,
        "Shortest time between two assignments of a consumer group.",
        bounds=Range(0), update=Update.CLUSTER_WIDE, instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.min.assignment.interval.ms", Kind.INT, "0", Importance.MEDIUM,
        "Lower bound of a consumer group's assignment interval.", bounds=Range(0), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.max.assignment.interval.ms", Kind.INT, "15000", Importance.MEDIUM,
        "Upper bound of a consumer group's assignment interval.", bounds=Range(0), instead=_CONSUMER,
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms", Kind.INT, "600000", Importance.MEDIUM,
        "Time after which the topics that match a member's pattern are determined again.", bounds=Range(10000),
        instead=_CONSUMER, internal=True,
    ),
    Setting(
        "group.streams.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Session time-out of streams groups' members.", bounds=Range(1), instead=_STREAMS,
    ),
    Setting(
        "group.streams.min.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Shortest session time-out that a streams group may set.", bounds=Range(1), instead=_STREAMS,
    ),
    Setting(
        "group.streams.max.session.timeout.ms", Kind.INT, "60000", Importance.MEDIUM,
        "Longest session time-out that a streams group may set.", bounds=Range(1), instead=_STREAMS,
    ),
    Setting(
        "group.streams.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Time between two heartbeats of streams groups' members.", bounds=Range(1), instead=_STREAMS,
    ),
    Setting(
        "group.streams.min.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Shortest heartbeat interval that a streams group may set.", bounds=Range(1), instead=_STREAMS,
    ),
    Setting(
        "group.streams.max.heartbeat.interval.ms", Kind.INT, "15000", Importance.MEDIUM,
        "Longest heartbeat interval that a streams group may set.", bounds=Range(1), instead=_STREAMS,
    ),
    Setting(
        "group.streams.max.size", Kind.INT, "2147483647", Importance.MEDIUM,
        "Most members that a streams group may have.", bounds=Range(1), instead=_STREAMS,
    ),
    Setting(
        "group.streams.num.standby.replicas", Kind.INT, "0", Importance.MEDIUM,
        "Standby replicas of each task.", bounds=Range(0), instead=_STREAMS,
    ),
    Setting(
        "group.streams.max.standby.replicas", Kind.INT, "2", Importance.MEDIUM,
        "Upper bound of a streams group's standby replicas.", bounds=Range(0), instead=_STREAMS,
    ),
    Setting(
        "group.streams.initial.rebalance.delay.ms", Kind.INT, "3000", Importance.MEDIUM,
        "How long a new streams group waits for more members.", bounds=Range(0), instead=_STREAMS,
    ),
    Setting(
        "group.streams.assignment.interval.ms", Kind.INT, "1000", Importance.MEDIUM,
        "Shortest time between two assignments of a streams group.",
        bounds=Range(0), update=Update.CLUSTER_WIDE, instead=_STREAMS,
    ),
    Setting(
        "group.streams.min.assignment.interval.ms", Kind.INT, "0", Importance.MEDIUM,
        "Lower bound of a streams group's assignment interval.", bounds=Range(0), instead=_STREAMS,
    ),
    Setting(
        "group.streams.max.assignment.interval.ms", Kind.INT, "15000", Importance.MEDIUM,
        "Upper bound of a streams group's assignment interval.", bounds=Range(0), instead=_STREAMS,
    ),
    Setting(
        "group.share.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Session time-out of share groups' members.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "group.share.min.session.timeout.ms", Kind.INT, "45000", Importance.MEDIUM,
        "Shortest session time-out that a share group may set.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "group.share.max.session.timeout.ms", Kind.INT, "60000", Importance.MEDIUM,
        "Longest session time-out that a share group may set.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "group.share.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Time between two heartbeats of share groups' members.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "group.share.min.heartbeat.interval.ms", Kind.INT, "5000", Importance.MEDIUM,
        "Shortest heartbeat interval that a share group may set.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "group.share.max.heartbeat.interval.ms", Kind.INT, "15000", Importance.MEDIUM,
        "Longest heartbeat interval that a share group may set.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "group.share.max.size", Kind.INT, "200", Importance.MEDIUM,
        "Most members that a share group may have.", bounds=Range(1, 1000), instead=_SHARE,
    ),
    Setting(
        "group.share.assignors", Kind.LIST, "simple", Importance.MEDIUM,
        "Assignors of share groups on the broker's side.", bounds=Members(may_be_empty=False), instead=_SHARE,
    ),
    Setting(
        "group.share.assignment.interval.ms", Kind.INT, "1000", Importance.MEDIUM,
        "Shortest time between two assignments of a share group.",
        bounds=Range(0), update=Update.CLUSTER_WIDE, instead=_SHARE,
    ),
    Setting(
        "group.share.min.assignment.interval.ms", Kind.INT, "0", Importance.MEDIUM,
        "Lower bound of a share group's assignment interval.", bounds=Range(0), instead=_SHARE,
    ),
    Setting(
        "group.share.max.assignment.interval.ms", Kind.INT, "15000", Importance.MEDIUM,
        "Upper bound of a share group's assignment interval.", bounds=Range(0), instead=_SHARE,
    ),
    Setting(
        "group.share.initialize.retry.interval.ms", Kind.INT, "30000", Importance.LOW,
        "Pause before a share group's partitions are initialized again.",
        bounds=Range(1), instead=_SHARE, internal=True,
    ),
    Setting(
        "group.share.delivery.count.limit", Kind.INT, "5", Importance.MEDIUM,
        "How many times a record is delivered at most to a share group.", bounds=Range(2, 10), instead=_SHARE,
    ),
    Setting(
        "group.share.min.delivery.count.limit", Kind.INT, "2", Importance.MEDIUM,
        "Lower bound of a share group's delivery count limit.", bounds=Range(2, 5), instead=_SHARE,
    ),
    Setting(
        "group.share.max.delivery.count.limit", Kind.INT, "10", Importance.MEDIUM,
        "Upper bound of a share group's delivery count limit.", bounds=Range(5, 25), instead=_SHARE,
    ),
    Setting(
        "group.share.record.lock.duration.ms", Kind.INT, "30000", Importance.MEDIUM,
        "How long a record stays locked for the consumer of a share group that got it.",
        bounds=Range(1000, 3600000), instead=_SHARE,
    ),
    Setting(
        "group.share.min.record.lock.duration.ms", Kind.INT, "15000", Importance.MEDIUM,
        "Lower bound of a share group's lock duration.", bounds=Range(1000, 30000), instead=_SHARE,
    ),
    Setting(
        "group.share.max.record.lock.duration.ms", Kind.INT, "60000", Importance.MEDIUM,
        "Upper bound of a share group's lock duration.", bounds=Range(30000, 3600000), instead=_SHARE,
    ),
    Setting(
        "group.share.partition.max.record.locks", Kind.INT, "2000", Importance.MEDIUM,
        "Most records of a partition that a share group locks at once.", bounds=Range(100, 10000), instead=_SHARE,
    ),
    Setting(
        "group.share.min.partition.max.record.locks", Kind.INT, "100", Importance.MEDIUM,
        "Lower bound of a share group's number of locked records.", bounds=Range(100, 2000), instead=_SHARE,
    ),
    Setting(
        "group.share.max.partition.max.record.locks", Kind.INT, "4000", Importance.MEDIUM,
        "Upper bound of a share group's number of locked records.", bounds=Range(2000, 10000), instead=_SHARE,
    ),
    Setting(
        "group.share.max.share.sessions", Kind.INT, "2000", Importance.MEDIUM,
        "Share sessions of a broker.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "group.share.persister.class.name",
        Kind.STRING, "org.apache.kafka.server.share.persister.DefaultStatePersister", Importance.MEDIUM,
        "Class that keeps the state of share groups.", instead=_SHARE, internal=True,
    ),
    Setting(
        "share.coordinator.state.topic.num.partitions", Kind.INT, "50", Importance.HIGH,
        "Partitions of the share state topic.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.state.topic.replication.factor", Kind.SHORT, "3", Importance.HIGH,
        "Replicas of the share state topic.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.state.topic.min.isr", Kind.SHORT, "2", Importance.HIGH,
        "Replicas in sync that writes to the share state topic need.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.state.topic.segment.bytes", Kind.INT, "104857600", Importance.HIGH,
        "Segment size of the share state topic.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.state.topic.compression.codec", Kind.INT, "0", Importance.HIGH,
        "Codec of the share state topic, by number.", instead=_SHARE,
    ),
    Setting(
        "share.coordinator.state.topic.prune.interval.ms", Kind.INT, "300000", Importance.LOW,
        "Time between two prunings of the share state topic.", bounds=Range(1), instead=_SHARE, internal=True,
    ),
    Setting(
        "share.coordinator.threads", Kind.INT, "1", Importance.MEDIUM,
        "Threads of the share coordinator.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.snapshot.update.records.per.snapshot", Kind.INT, "500", Importance.MEDIUM,
        "Updates between two snapshots of share state.", bounds=Range(0, 500), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.cold.partition.snapshot.interval.ms", Kind.INT, "300000", Importance.LOW,
        "Time between two snapshots of idle share partitions.", bounds=Range(1), instead=_SHARE, internal=True,
    ),
    Setting(
        "share.coordinator.load.buffer.size", Kind.INT, "5242880", Importance.HIGH,
        "Bytes that are read at once when a share coordinator loads a partition.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.append.linger.ms", Kind.INT, "-1", Importance.MEDIUM,
        "How long the share coordinator gathers writes for one append.", bounds=Range(-1), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.write.timeout.ms", Kind.INT, "5000", Importance.HIGH,
        "Longest wait until share state is replicated.", bounds=Range(1), instead=_SHARE,
    ),
    Setting(
        "share.coordinator.cached.buffer.max.bytes", Kind.INT, "1048588", Importance.MEDIUM,
        "Largest buffer that the share coordinator keeps for its next write.", bounds=Range(524288),
        update=Update.CLUSTER_WIDE, instead=_SHARE,
    ),
)
