"""Settings of older Kafka versions and of Kafka's plug-ins, which existing properties files may still have.

Pure. Some are listed by the prefix of a family of names. A setting whose name is found here is accepted with one
warning, and isn't used.
"""

RETIRED: dict[str, str] = {
    name: instead
    for instead, names in {
        "there is no ZooKeeper: ottla.metadata.store names the metadata store": (
            "zookeeper.connect", "zookeeper.connection.timeout.ms", "zookeeper.session.timeout.ms",
            "zookeeper.sync.time.ms", "zookeeper.set.acl", "zookeeper.max.in.flight.requests",
            "zookeeper.metadata.migration.enable", "zookeeper.metadata.migration.min.batch.size",
            "zookeeper.clientCnxnSocket", "zookeeper.ssl.client.enable", "zookeeper.ssl.protocol",
            "zookeeper.ssl.enabled.protocols", "zookeeper.ssl.cipher.suites",
            "zookeeper.ssl.keystore.location", "zookeeper.ssl.keystore.password",
            "zookeeper.ssl.keystore.type", "zookeeper.ssl.truststore.location",
            "zookeeper.ssl.truststore.password", "zookeeper.ssl.truststore.type",
            "zookeeper.ssl.endpoint.identification.algorithm", "zookeeper.ssl.crl.enable",
            "zookeeper.ssl.ocsp.enable",
        ),
        "brokers do not take numbers from a store: set node.id": (
            "broker.id.generation.enable", "reserved.broker.max.id",
        ),
        "set listeners": ("host.name", "port"),
        "set advertised.listeners": ("advertised.host.name", "advertised.port"),
        "there is one record format: batches of version 2": (
            "log.message.format.version", "log.message.downconversion.enable", "message.format.version",
            "message.downconversion.enable",
        ),
        "brokers of one cluster agree on versions by themselves": ("inter.broker.protocol.version",),
        "set log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms": (
            "log.message.timestamp.difference.max.ms",
        ),
        "set message.timestamp.before.max.ms and message.timestamp.after.max.ms": (
            "message.timestamp.difference.max.ms",
        ),
        "set quotas with kafka-configs or an admin client": ("quota.producer.default", "quota.consumer.default"),
        "brokers follow the metadata store, the controller sends them nothing": (
            "control.plane.listener.name", "controller.message.queue.size",
        ),
        "a broker hands over its leaderships once, when it is stopped": (
            "controlled.shutdown.max.retries", "controlled.shutdown.retry.backoff.ms",
        ),
        "the controller gives a leadership back when the preferred replica is in sync again": (
            "leader.imbalance.per.broker.percentage",
        ),
        "commits wait for all replicas in sync": ("offsets.commit.required.acks",),
        "dynamic passwords are kept as plain text, as in Apache Kafka 4": (
            "password.encoder.secret", "password.encoder.old.secret",
            "password.encoder.keyfactory.algorithm", "password.encoder.cipher.algorithm",
            "password.encoder.key.length", "password.encoder.iterations",
        ),
        "there are no delegation tokens yet": ("delegation.token.master.key",),
        "replicas leave the ISR by time alone: set replica.lag.time.max.ms": ("replica.lag.max.messages",),
        "metrics are served to Prometheus on ottla.http.listener": (
            "auto.include.jmx.reporter", "kafka.csv.metrics.reporter.enabled", "kafka.csv.metrics.dir",
        ),
        "only the classic group protocol is served yet": ("group.coordinator.new.enable",),
        "there are no share groups yet": (
            "group.share.enable", "group.share.max.groups", "group.share.record.lock.partition.limit",
        ),
        "set log.segment.delete.delay.ms": ("log.delete.delay.ms",),
        "set log.retention.check.interval.ms": ("log.cleanup.interval.mins",),
        "set log.flush.interval.messages and log.flush.interval.ms": (
            "log.flush.interval", "log.default.flush.interval.ms",
            "log.default.flush.scheduler.interval.ms", "log.flush.intervals.ms.per.topic",
        ),
        "give the topic a setting of its own": (
            "log.segment.bytes.per.topic", "log.roll.hours.per.topic", "log.retention.hours.per.topic",
            "log.retention.bytes.per.topic", "topic.partition.count.map",
        ),
        "versions under development are never offered": ("unstable.metadata.versions.enable",),
        "new clusters keep eligible leader replicas": ("eligible.leader.replicas.enable",),
    }.items()
    for name in names
}
"""A setting's name → a sentence that says what Ottla does instead."""

FAMILIES: dict[str, str] = {
    "rsm.config.": "there is no tiered storage yet",
    "rlmm.config.": "there is no tiered storage yet",
    "config.providers.": "values are read as they stand; give secrets by environment variables",
    "metrics.jmx.": "metrics are served to Prometheus on ottla.http.listener",
    "client.quota.callback.static.": "classes in Java can't be loaded; quotas are those of KIP-546",
}
"""The prefix of the names of settings of a plug-in of Kafka → a sentence that says what Ottla does instead."""
