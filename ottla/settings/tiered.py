"""Tiered storage: old segments in a remote store.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Pattern, Range, Setting, Update

_NOT_EMPTY = Pattern(r".+", "any text but none")
_TIERED = "there is no tiered storage yet"

SETTINGS = (
    Setting(
        "remote.log.storage.system.enable", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Switch tiered storage on.", instead=_TIERED,
    ),
    Setting(
        "remote.log.storage.manager.impl.prefix", Kind.STRING, "rsm.config.", Importance.MEDIUM,
        "Prefix of the properties for the remote store's class.", bounds=_NOT_EMPTY, instead=_TIERED,
    ),
    Setting(
        "remote.log.metadata.manager.impl.prefix", Kind.STRING, "rlmm.config.", Importance.MEDIUM,
        "Prefix of the properties for the remote metadata's class.", bounds=_NOT_EMPTY, instead=_TIERED,
    ),
    Setting(
        "remote.log.storage.manager.class.name", Kind.STRING, None, Importance.MEDIUM,
        "Class that reaches the remote store.", bounds=_NOT_EMPTY, instead=_TIERED,
    ),
    Setting(
        "remote.log.storage.manager.class.path", Kind.STRING, None, Importance.MEDIUM,
        "Class path of the class that reaches the remote store.", instead=_TIERED,
    ),
    Setting(
        "remote.log.metadata.manager.class.name",
        Kind.STRING, "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        Importance.MEDIUM, "Class that keeps the remote metadata.", bounds=_NOT_EMPTY, instead=_TIERED,
    ),
    Setting(
        "remote.log.metadata.manager.class.path", Kind.STRING, None, Importance.MEDIUM,
        "Class path of the class that keeps the remote metadata.", instead=_TIERED,
    ),
    Setting(
        "remote.log.metadata.manager.listener.name", Kind.STRING, None, Importance.MEDIUM,
        "Listener that the class that keeps the remote metadata connects to.", bounds=_NOT_EMPTY, instead=_TIERED,
    ),
    Setting(
        "remote.log.metadata.custom.metadata.max.bytes", Kind.INT, "128", Importance.LOW,
        "Largest custom metadata of a remote segment.", bounds=Range(0), instead=_TIERED,
    ),
    Setting(
        "remote.log.index.file.cache.total.size.bytes", Kind.LONG, "1073741824", Importance.LOW,
        "Disk space for copies of remote index files.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "remote.log.index.file.cache.ttl.ms", Kind.LONG, "900000", Importance.LOW,
        "How long an unused copy of a remote index file is kept.", bounds=Range(-1), instead=_TIERED, internal=True,
    ),
    Setting(
        "remote.log.manager.thread.pool.size", Kind.INT, "2", Importance.MEDIUM,
        "Threads that look up remote offsets.", bounds=Range(1), instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.copier.thread.pool.size", Kind.INT, "10", Importance.MEDIUM,
        "Threads that copy segments.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.expiration.thread.pool.size", Kind.INT, "10", Importance.MEDIUM,
        "Threads that delete remote segments.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.follower.thread.pool.size", Kind.INT, "2", Importance.MEDIUM,
        "Threads that look up remote offsets for followers.", bounds=Range(1), update=Update.CLUSTER_WIDE,
        instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.task.interval.ms", Kind.LONG, "30000", Importance.LOW,
        "Time between two rounds of copying segments to the remote store and deleting them there.",
        bounds=Range(1), instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.task.retry.backoff.ms", Kind.LONG, "500", Importance.LOW,
        "First pause after a failure of the remote store.", bounds=Range(1), instead=_TIERED, internal=True,
    ),
    Setting(
        "remote.log.manager.task.retry.backoff.max.ms", Kind.LONG, "30000", Importance.LOW,
        "Longest pause after failures of the remote store.", bounds=Range(1), instead=_TIERED, internal=True,
    ),
    Setting(
        "remote.log.manager.task.retry.jitter", Kind.DOUBLE, "0.2", Importance.LOW,
        "Random part of the pause after a failure of the remote store.",
        bounds=Range(0, 0.5), instead=_TIERED, internal=True,
    ),
    Setting(
        "remote.log.reader.threads", Kind.INT, "10", Importance.MEDIUM,
        "Threads that read remote segments.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "remote.log.reader.max.pending.tasks", Kind.INT, "100", Importance.MEDIUM,
        "Remote reads that may wait.", bounds=Range(1), instead=_TIERED,
    ),
    Setting(
        "log.local.retention.ms", Kind.LONG, "-2", Importance.MEDIUM,
        "Age at which a tiered segment's local copy is deleted; with -2, log.retention.ms counts.", bounds=Range(-2),
        update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "log.local.retention.bytes", Kind.LONG, "-2", Importance.MEDIUM,
        "Size beyond which local copies of tiered segments are deleted; with -2, log.retention.bytes counts.",
        bounds=Range(-2), update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.copy.max.bytes.per.second", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Bytes per second copied to the remote store.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.copy.quota.window.num", Kind.INT, "11", Importance.MEDIUM,
        "Samples kept for the limit of copies to the remote store.", bounds=Range(1), instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.copy.quota.window.size.seconds", Kind.INT, "1", Importance.MEDIUM,
        "Length of one sample for the limit of copies to the remote store.", bounds=Range(1), instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.fetch.max.bytes.per.second", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Bytes per second read from the remote store.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.fetch.quota.window.num", Kind.INT, "11", Importance.MEDIUM,
        "Samples kept for the limit of reads from the remote store.", bounds=Range(1), instead=_TIERED,
    ),
    Setting(
        "remote.log.manager.fetch.quota.window.size.seconds", Kind.INT, "1", Importance.MEDIUM,
        "Length of one sample for the limit of reads from the remote store.", bounds=Range(1), instead=_TIERED,
    ),
    Setting(
        "remote.fetch.max.wait.ms", Kind.INT, "500", Importance.MEDIUM,
        "How long a fetch waits for the remote store.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_TIERED,
    ),
    Setting(
        "remote.list.offsets.request.timeout.ms", Kind.LONG, "30000", Importance.MEDIUM,
        "How long a lookup of offsets waits for the remote store.", bounds=Range(1), update=Update.CLUSTER_WIDE,
        instead=_TIERED,
    ),
)
