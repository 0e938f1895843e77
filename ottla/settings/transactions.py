"""Transactions: their coordinator and its log.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Range, Setting, Update

SETTINGS = (
    Setting(
        "transaction.state.log.min.isr", Kind.INT, "2", Importance.HIGH,
        "Replicas in sync that writes to the transaction log need.", bounds=Range(1),
    ),
    Setting(
        "transaction.state.log.load.buffer.size", Kind.INT, "5242880", Importance.HIGH,
        "Bytes that are read at once when a transaction coordinator loads a partition.",
        bounds=Range(1),
    ),
    Setting(
        "transaction.state.log.replication.factor", Kind.SHORT, "3", Importance.HIGH,
        "Replicas of the transaction log.", bounds=Range(1),
    ),
    Setting(
        "transaction.state.log.num.partitions", Kind.INT, "50", Importance.HIGH,
        "Partitions of the transaction log.", bounds=Range(1),
    ),
    Setting(
        "transaction.state.log.segment.bytes", Kind.INT, "104857600", Importance.HIGH,
        "Segment size of the transaction log.", bounds=Range(1),
    ),
    Setting(
        "transaction.partition.verification.enable", Kind.BOOLEAN, "true", Importance.LOW,
        "Check that a partition that a transaction writes to belongs to the transaction.", update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "transactional.id.expiration.ms", Kind.INT, "604800000", Importance.HIGH,
        "Time after which an idle transactional id is forgotten.", bounds=Range(1),
    ),
    Setting(
        "transaction.max.timeout.ms", Kind.INT, "900000", Importance.HIGH,
        "Longest time-out a transaction may ask for.", bounds=Range(1),
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", Kind.INT, "10000", Importance.LOW,
        "Time between two searches for transactions that have timed out.", bounds=Range(1),
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms", Kind.INT, "3600000", Importance.LOW,
        "Time between two searches for expired transactional ids.", bounds=Range(1),
    ),
    Setting(
        "transaction.two.phase.commit.enable", Kind.BOOLEAN, "false", Importance.LOW,
        "Allow transactions that another system commits.",
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.max.ms", Kind.INT, "100", Importance.HIGH,
        "Longest time spent on adding a partition to a transaction again.", bounds=Range(0),
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.ms", Kind.INT, "20", Importance.HIGH,
        "Pause before a partition is added to a transaction again.", bounds=Range(1),
    ),
)
