"""General broker settings: identity, topics, requests, replication.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Members, OneOf, Range, Setting, Update

_JAVA = "it names Java code, which has no place in a Python process"
_PURGATORY = "a delayed request is removed as soon as it is finished"
_THREADS = "one event loop serves everything, so thread counts have no meaning"
_TIERED = "there is no tiered storage yet"
_NO_CHANNEL = "brokers follow the metadata store, the controller sends them nothing"
_METRICS = "metrics are served to Prometheus on ottla.http.listener"
_TELEMETRY = "clients are not asked for their metrics"
_REPLICATION_QUOTA = "the limits of replication allow the bytes of one second at once"
_COMPRESSION = "the broker compresses at each codec's default level"

SETTINGS = (
    Setting(
        "process.roles", Kind.LIST, "broker,controller", Importance.HIGH,
        "Which roles this process plays: broker, controller, or both.",
        bounds=Members(("broker", "controller"), may_be_empty=False),
    ),
    Setting(
        "node.id", Kind.INT, None, Importance.HIGH,
        "Id of this process, unique in the cluster.", bounds=Range(0),
    ),
    Setting("broker.id", Kind.INT, "-1", Importance.HIGH, "Older name of node.id."),
    Setting(
        "broker.rack", Kind.STRING, None, Importance.MEDIUM,
        "Rack (or zone) of this broker, for the placement of replicas.",
    ),
    Setting(
        "cordoned.log.dirs", Kind.LIST, "", Importance.MEDIUM,
        "Log directories that get no new replicas as long as there is another directory; `*` means all.",
        bounds=Members(),
        update=Update.PER_BROKER,
    ),
    Setting(
        "num.partitions", Kind.INT, "1", Importance.MEDIUM,
        "Partitions of a topic whose creator names no number of partitions.", bounds=Range(1),
    ),
    Setting(
        "default.replication.factor", Kind.INT, "1", Importance.MEDIUM,
        "Replicas of each partition of a topic whose creator names no replication factor.",
    ),
    Setting(
        "auto.create.topics.enable", Kind.BOOLEAN, "true", Importance.HIGH,
        "Create a topic when a client asks for one that does not exist.",
    ),
    Setting("delete.topic.enable", Kind.BOOLEAN, "true", Importance.HIGH, "Allow clients to delete topics."),
    Setting(
        "create.topic.policy.class.name", Kind.CLASS, None, Importance.LOW,
        "Class that may refuse the creation of a topic.", instead=_JAVA,
    ),
    Setting(
        "alter.config.policy.class.name", Kind.CLASS, None, Importance.LOW,
        "Class that may refuse a change of settings.", instead=_JAVA,
    ),
    Setting(
        "message.max.bytes", Kind.INT, "1048588", Importance.HIGH,
        "Largest record batch accepted, after compression.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "compression.type", Kind.STRING, "producer", Importance.HIGH,
        "Codec in which batches are stored; `producer` keeps each batch's own codec.",
        bounds=OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "compression.gzip.level", Kind.INT, "-1", Importance.MEDIUM,
        "Level at which the broker compresses with gzip.", bounds=Range(1, 9, also=-1), update=Update.CLUSTER_WIDE,
        instead=_COMPRESSION,
    ),
    Setting(
        "compression.lz4.level", Kind.INT, "9", Importance.MEDIUM,
        "Level at which the broker compresses with lz4.", bounds=Range(1, 17), update=Update.CLUSTER_WIDE,
        instead=_COMPRESSION,
    ),
    Setting(
        "compression.zstd.level", Kind.INT, "3", Importance.MEDIUM,
        "Level at which the broker compresses with zstd.", bounds=Range(-131072, 22), update=Update.CLUSTER_WIDE,
        instead=_COMPRESSION,
    ),
    Setting(
        "min.insync.replicas", Kind.INT, "1", Importance.HIGH,
        "Replicas in sync that a write with acks=all needs.", bounds=Range(1), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "unclean.leader.election.enable", Kind.BOOLEAN, "false", Importance.HIGH,
        "Let a replica outside the ISR lead when no other is left; may lose records.", update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "unclean.leader.election.interval.ms", Kind.LONG, "300000", Importance.MEDIUM,
        "Time between two searches for partitions that need an unclean election.", bounds=Range(1),
        instead="the controller acts on changes as they come", internal=True,
    ),
    Setting(
        "auto.leader.rebalance.enable", Kind.BOOLEAN, "true", Importance.HIGH,
        "Let the controller move leaderships back to preferred replicas.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds", Kind.LONG, "300", Importance.HIGH,
        "Time between two searches for leaders that are not preferred.", bounds=Range(1),
    ),
    Setting(
        "fetch.max.bytes", Kind.INT, "57671680", Importance.MEDIUM,
        "Most bytes that one fetch response carries.", bounds=Range(1024),
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots", Kind.INT, "1000", Importance.MEDIUM,
        "Most incremental fetch sessions that a broker keeps.", bounds=Range(0),
    ),
    Setting(
        "max.request.partition.size.limit", Kind.INT, "2000", Importance.MEDIUM,
        "Most partitions in one DescribeTopicPartitions answer.", bounds=Range(1),
    ),
    Setting(
        "fetch.purgatory.purge.interval.requests", Kind.INT, "1000", Importance.MEDIUM,
        "Number of finished delayed fetches at which they are removed.", instead=_PURGATORY,
    ),
    Setting(
        "producer.purgatory.purge.interval.requests", Kind.INT, "1000", Importance.MEDIUM,
        "Number of finished delayed produces at which they are removed.", instead=_PURGATORY,
    ),
    Setting(
        "delete.records.purgatory.purge.interval.requests", Kind.INT, "1", Importance.MEDIUM,
        "Number of finished delayed deletions at which they are removed.", instead=_PURGATORY,
    ),
    Setting(
        "share.fetch.purgatory.purge.interval.requests", Kind.INT, "1000", Importance.MEDIUM,
        "Number of finished delayed share fetches at which they are removed.", instead=_PURGATORY,
    ),
    Setting(
        "num.io.threads", Kind.INT, "8", Importance.HIGH,
        "Threads that handle requests.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_THREADS,
    ),
    Setting(
        "background.threads", Kind.INT, "10", Importance.HIGH,
        "Threads for chores such as retention.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_THREADS,
    ),
    Setting(
        "num.replica.alter.log.dirs.threads", Kind.INT, None, Importance.HIGH,
        "Threads that move replicas between log directories.", instead=_THREADS,
    ),
    Setting(
        "request.timeout.ms", Kind.INT, "30000", Importance.HIGH, "Longest wait for another broker's answer.",
        instead="brokers ask each other only for records, within replica.socket.timeout.ms",
    ),
    Setting(
        "controlled.shutdown.enable", Kind.BOOLEAN, "true", Importance.MEDIUM,
        "Move leaderships away before the broker stops.",
        instead="a broker always hands over its leaderships when it is stopped",
    ),
    Setting(
        "initial.broker.registration.timeout.ms", Kind.INT, "60000", Importance.MEDIUM,
        "How long a starting broker or controller waits for each answer of a metadata store that can't be reached or "
        "has no leader, before it gives up. It always waits until the registration of a dead predecessor with its "
        "node.id has ended.",
    ),
    Setting(
        "broker.heartbeat.interval.ms", Kind.INT, "2000", Importance.MEDIUM,
        "Time between two heartbeats of this broker.",
        instead="the registration is renewed four times in a broker.session.timeout.ms",
    ),
    Setting(
        "broker.session.timeout.ms", Kind.INT, "9000", Importance.MEDIUM,
        "Time without a heartbeat after which a broker counts as dead.",
    ),
    Setting(
        "server.max.startup.time.ms", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Longest time a start may take.", bounds=Range(0), internal=True,
        instead="a start takes as long as recovery takes",
    ),
    Setting(
        "config.providers", Kind.LIST, "", Importance.LOW,
        "Sources that values such as passwords are looked up in.", bounds=Members(), update=Update.CLUSTER_WIDE,
        instead="values are read as they stand; give secrets by environment variables",
    ),
    Setting(
        "unstable.api.versions.enable", Kind.BOOLEAN, "false", Importance.HIGH,
        "Offer API versions that are still under development.",
        instead="versions under development are never offered", internal=True,
    ),
    Setting(
        "unstable.feature.versions.enable", Kind.BOOLEAN, "false", Importance.HIGH,
        "Allow feature versions that are still under development.",
        instead="versions under development are never offered", internal=True,
    ),
    Setting(
        "replica.lag.time.max.ms", Kind.LONG, "30000", Importance.HIGH,
        "How long a follower may lag before it leaves the ISR, and how long the high watermark waits for a follower "
        "that was caught up and is about to join the ISR.",
    ),
    Setting(
        "replica.socket.timeout.ms", Kind.INT, "30000", Importance.HIGH,
        "Longest wait for the answer to a follower's fetch.",
    ),
    Setting(
        "replica.socket.receive.buffer.bytes", Kind.INT, "65536", Importance.HIGH,
        "Receive buffer of the sockets that followers fetch with.",
        instead="the system sizes the buffers of these sockets",
    ),
    Setting(
        "replica.fetch.max.bytes", Kind.INT, "1048576", Importance.MEDIUM,
        "Most bytes of one partition that a follower asks for in a fetch.", bounds=Range(0),
    ),
    Setting(
        "replica.fetch.wait.max.ms", Kind.INT, "500", Importance.HIGH,
        "How long a leader may hold a follower's fetch back.",
    ),
    Setting(
        "replica.fetch.backoff.ms", Kind.INT, "1000", Importance.MEDIUM,
        "Pause after a failed fetch of a follower.", bounds=Range(0),
    ),
    Setting(
        "replica.fetch.min.bytes", Kind.INT, "1", Importance.HIGH,
        "Fewest bytes that a follower's fetch waits for.",
    ),
    Setting(
        "replica.fetch.response.max.bytes", Kind.INT, "10485760", Importance.MEDIUM,
        "Most bytes of all partitions that a follower asks for in a fetch.", bounds=Range(0),
    ),
    Setting(
        "num.replica.fetchers", Kind.INT, "1", Importance.HIGH,
        "Fetchers that a follower runs per leader broker.", bounds=Range(1), update=Update.CLUSTER_WIDE,
        instead=_THREADS,
    ),
    Setting(
        "replica.selector.class", Kind.STRING, None, Importance.MEDIUM,
        "How the replica that a consumer reads from is chosen: "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector takes one in the consumer's rack; with any "
        "other value, the consumer reads from the leader.",
    ),
    Setting(
        "follower.fetch.last.tiered.offset.enable", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Let a new follower start at the last tiered offset.", update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "controller.socket.timeout.ms", Kind.INT, "30000", Importance.MEDIUM,
        "Longest wait on a channel from the controller.", instead=_NO_CHANNEL,
    ),
    Setting(
        "leader.replication.throttled.rate", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Bytes per second that a leader sends for throttled replicas.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "follower.replication.throttled.rate", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Bytes per second that a follower fetches for throttled replicas.", bounds=Range(0),
        update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Bytes per second for moves between log directories.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "metric.reporters", Kind.LIST, "org.apache.kafka.common.metrics.JmxReporter", Importance.LOW,
        "Classes that metrics are reported to.", bounds=Members(), update=Update.CLUSTER_WIDE, instead=_METRICS,
    ),
    Setting(
        "metrics.num.samples", Kind.INT, "2", Importance.LOW,
        "Samples kept per metric.", bounds=Range(1), instead=_METRICS,
    ),
    Setting(
        "metrics.sample.window.ms", Kind.LONG, "30000", Importance.LOW,
        "Length of one sample of a metric.", bounds=Range(1), instead=_METRICS,
    ),
    Setting(
        "metrics.recording.level", Kind.STRING, "INFO", Importance.LOW,
        "Which metrics are recorded.", instead=_METRICS,
    ),
    Setting(
        "kafka.metrics.reporters", Kind.LIST, "", Importance.LOW,
        "Classes that the older metrics are reported to.", bounds=Members(), instead=_METRICS,
    ),
    Setting(
        "kafka.metrics.polling.interval.secs", Kind.INT, "10", Importance.LOW,
        "Time between two reports to kafka.metrics.reporters.", bounds=Range(1), instead=_METRICS,
    ),
    Setting(
        "telemetry.max.bytes", Kind.INT, "1048576", Importance.LOW,
        "Largest batch of metrics that a client may push.", bounds=Range(1), instead=_TELEMETRY,
    ),
    Setting(
        "quota.window.num", Kind.INT, "11", Importance.LOW,
        "Samples kept for client quotas.", bounds=Range(1),
    ),
    Setting(
        "quota.window.size.seconds", Kind.INT, "1", Importance.LOW,
        "Length of one sample of a client quota.", bounds=Range(1),
    ),
    Setting(
        "replication.quota.window.num", Kind.INT, "11", Importance.LOW,
        "Samples kept for replication quotas.", bounds=Range(1), instead=_REPLICATION_QUOTA,
    ),
    Setting(
        "replication.quota.window.size.seconds", Kind.INT, "1", Importance.LOW,
        "Length of one sample of a replication quota.", bounds=Range(1), instead=_REPLICATION_QUOTA,
    ),
    Setting(
        "alter.log.dirs.replication.quota.window.num", Kind.INT, "11", Importance.LOW,
        "Samples kept for quotas on moves between log directories.", bounds=Range(1), instead=_REPLICATION_QUOTA,
    ),
    Setting(
        "alter.log.dirs.replication.quota.window.size.seconds", Kind.INT, "1", Importance.LOW,
        "Length of one sample of a quota on moves between log directories.", bounds=Range(1),
        instead=_REPLICATION_QUOTA,
    ),
    Setting(
        "controller.quota.window.num", Kind.INT, "11", Importance.LOW,
        "Samples kept for quotas on changes of topics.", bounds=Range(1),
    ),
    Setting(
        "controller.quota.window.size.seconds", Kind.INT, "1", Importance.LOW,
        "Length of one sample of a quota on changes of topics.", bounds=Range(1),
    ),
    Setting(
        "client.quota.callback.class", Kind.CLASS, None, Importance.LOW,
        "Class that decides which quota a client has.", instead=_JAVA,
    ),
)
