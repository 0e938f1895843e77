import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Produces, consumes, and uses groups and the admin client. Each step checks for the values that Apache Kafka returns. */
final class RoundTrip {
    private static final int COUNT = 1000;
    private final String bootstrap;
    private final String topic;
    private final String group;
    private final short factor;
    private final Report report;
    private Admin admin;
    private Uuid topicId;

    RoundTrip(String bootstrap, String prefix, short factor, Report report) {
        this.bootstrap = bootstrap;
        this.topic = prefix + "-topic";
        this.group = prefix + "-group";
        this.factor = factor;
        this.report = report;
    }

    void run() {
        admin = Admin.create(properties(Map.of()));
        report.step("describe the cluster", this::describeCluster);
        report.step("create topics", this::createTopics);
        report.step("refuse topics that can't be created", this::refuseTopics);
        report.step("describe topics by name and id", this::describeTopics);
        report.step("add partitions", this::addPartitions);
        report.step("configs", this::configs);
        report.step("produce", this::produce);
        report.step("refuse records that are too large", this::refuseLarge);
        report.step("large records", this::largeRecords);
        report.step("list offsets", this::listOffsets);
        report.step("consume by assignment", this::consumeAssigned);
        report.step("offset out of range", this::outOfRange);
        report.step("consume by group", this::consumeByGroup);
        report.step("resume at the committed offset", this::resume);
        report.step("two members share and rebalance", this::rebalance);
        report.step("static membership", this::staticMembership);
        report.step("group administration", this::groupAdministration);
        report.step("delete records", this::deleteRecords);
        report.step("log directories and producers", this::logDirs);
        report.step("elections and reassignments", this::elections);
        report.step("quotas are stored", this::quotas);
        report.step("delete topics", this::deleteTopics);
        admin.close();
    }

    private Properties properties(Map<String, String> more) {
        Properties properties = new Properties();
        properties.putAll(Brokers.at(bootstrap));
        properties.put("default.api.timeout.ms", "20000");
        properties.put("request.timeout.ms", "15000");
        properties.putAll(more);
        return properties;
    }

    private KafkaConsumer<String, String> consumer(Map<String, String> more) {
        Map<String, String> values = new HashMap<>(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", "false"));
        values.putAll(more);
        return new KafkaConsumer<>(properties(values), new StringDeserializer(), new StringDeserializer());
    }

    private static <T extends Throwable> T expect(Class<T> type, Future<?> future) throws InterruptedException {
        try {
            Object result = future.get();
            throw new AssertionError("expected " + type.getSimpleName() + ", got " + result);
        } catch (ExecutionException error) {
            Report.check(type.isInstance(error.getCause()), "expected " + type.getSimpleName() + ", got " + error.getCause());
            return type.cast(error.getCause());
        }
    }

    private List<TopicPartition> partitions(int count) {
        List<TopicPartition> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(new TopicPartition(topic, i));
        }
        return all;
    }

    private Void describeCluster() throws Exception {
        var cluster = admin.describeCluster();
        Report.check(!cluster.nodes().get().isEmpty(), "no nodes");
        Report.check(cluster.nodes().get().contains(cluster.controller().get()), "the controller isn't a node");
        Report.check(!cluster.clusterId().get().isEmpty(), "no cluster id");
        return null;
    }

    private Void createTopics() throws Exception {
        NewTopic wanted = new NewTopic(topic, 3, factor)
            .configs(Map.of("retention.ms", "86400000", "min.insync.replicas", Integer.toString(Math.max(factor - 1, 1))));
        admin.createTopics(List.of(new NewTopic(topic + "-dry", 2, factor)), new CreateTopicsOptions().validateOnly(true)).all().get();
        var result = admin.createTopics(List.of(wanted, new NewTopic(topic + "-default", Optional.empty(), Optional.empty())));
        result.all().get();
        topicId = result.topicId(topic).get();
        Report.equal(result.numPartitions(topic).get(), 3);
        Report.equal(result.replicationFactor(topic).get(), (int) factor);
        Report.equal(result.replicationFactor(topic + "-default").get(), (int) factor);
        Report.equal(result.config(topic).get().get("retention.ms").value(), "86400000");
        everywhere(() -> admin.listTopics().names().get().containsAll(Set.of(topic, topic + "-default")), "not listed");
        Report.check(!admin.listTopics().names().get().contains(topic + "-dry"), "validateOnly created a topic");
        return null;
    }

    private Void refuseTopics() throws Exception {
        expect(TopicExistsException.class, create(new NewTopic(topic, 1, factor)));
        expect(InvalidTopicException.class, create(new NewTopic("no spaces", 1, factor)));
        expect(InvalidPartitionsException.class, create(new NewTopic(topic + "-none", 0, factor)));
        expect(InvalidReplicationFactorException.class, create(new NewTopic(topic + "-many", 1, (short) 99)));
        expect(InvalidConfigurationException.class, create(new NewTopic(topic + "-odd", 1, factor).configs(Map.of("no.such", "1"))));
        expect(InvalidConfigurationException.class,
            create(new NewTopic(topic + "-bad", 1, factor).configs(Map.of("retention.ms", "soon"))));
        expect(UnknownTopicOrPartitionException.class, admin.deleteTopics(List.of(topic + "-absent")).all());
        return null;
    }

    private Future<Void> create(NewTopic wanted) {
        return admin.createTopics(List.of(wanted)).all();
    }

    private Void describeTopics() throws Exception {
        TopicDescription byName = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        TopicDescription byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(topicId))).allTopicIds().get().get(topicId);
        for (TopicDescription description : List.of(byName, byId)) {
            Report.equal(description.name(), topic);
            Report.equal(description.topicId(), topicId);
            Report.equal(description.partitions().size(), 3);
            Report.check(description.partitions().get(2).leader() != null, "no leader");
            Report.equal(description.partitions().get(2).replicas().size(), (int) factor);
            Report.equal(description.partitions().get(2).isr().size(), (int) factor);
        }
        expect(UnknownTopicOrPartitionException.class, admin.describeTopics(List.of(topic + "-absent")).allTopicNames());
        return null;
    }

    private Void addPartitions() throws Exception {
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        expect(InvalidPartitionsException.class, admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
        expect(InvalidPartitionsException.class, admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all());
        everywhere(
            () -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 5,
            "the new partitions don't show");
        return null;
    }

    private Void configs() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ConfigEntry set = config(resource).get("retention.ms");
        Report.equal(set.value(), "86400000");
        Report.equal(set.source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG);
        Report.equal(config(resource).get("cleanup.policy").source(), ConfigEntry.ConfigSource.DEFAULT_CONFIG);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", ""), OpType.DELETE),
            new AlterConfigOp(new ConfigEntry("segment.bytes", "2097152"), OpType.SET),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), OpType.APPEND)))).all().get();
        everywhere(() -> "2097152".equals(config(resource).get("segment.bytes").value()), "the change doesn't show");
        Report.equal(config(resource).get("retention.ms").value(), "604800000");
        Report.equal(new HashSet<>(Arrays.asList(config(resource).get("cleanup.policy").value().split(","))), Set.of("delete", "compact"));
        expect(InvalidConfigurationException.class, admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("segment.bytes", "few"), OpType.SET)))).all());
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("cleanup.policy", ""), OpType.DELETE)))).all().get();
        String node = admin.describeCluster().nodes().get().iterator().next().idString();
        Config broker = config(new ConfigResource(ConfigResource.Type.BROKER, node));
        Report.check(broker.get("log.segment.bytes") != null, "no broker configs");
        Report.check(!admin.listConfigResources().all().get().isEmpty(), "no config resources");
        return null;
    }

    private Config config(ConfigResource resource) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource);
    }

    private Void produce() throws Exception {
        try (var producer = new KafkaProducer<>(properties(Map.of("acks", "all")), new StringSerializer(), new StringSerializer())) {
            Report.equal(producer.partitionsFor(topic).size(), 5);
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < COUNT; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, i % 4, "key-" + i, "value-" + i)));
            }
            for (int i = 0; i < COUNT; i++) {
                RecordMetadata metadata = sent.get(i).get();
                Report.equal(metadata.partition(), i % 4);
                Report.equal(metadata.offset(), (long) (i / 4));
            }
        }
        for (String acks : List.of("0", "1")) {
            Map<String, String> values = Map.of("acks", acks, "enable.idempotence", "false");
            try (var producer = new KafkaProducer<>(properties(values), new StringSerializer(), new StringSerializer())) {
                producer.send(new ProducerRecord<>(topic, 4, "acks", acks)).get();
            }
        }
        return null;
    }

    private Void refuseLarge() throws Exception {
        Map<String, String> values = Map.of("max.request.size", "4000000");
        try (var producer = new KafkaProducer<>(properties(values), new StringSerializer(), new StringSerializer())) {
            expect(RecordTooLargeException.class, producer.send(new ProducerRecord<>(topic + "-default", 0, "k", "x".repeat(2_000_000))));
            producer.send(new ProducerRecord<>(topic + "-default", 0, "k", "small")).get();
        }
        return null;
    }

    private Void largeRecords() throws Exception {
        String large = "y".repeat(900_000);
        try (var producer = new KafkaProducer<>(properties(Map.of()), new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 5; i++) {
                producer.send(new ProducerRecord<>(topic + "-default", 0, "k", large));
            }
            producer.flush();
        }
        // The limits are smaller than one batch: the batch must arrive nevertheless (KIP-74).
        try (var consumer = consumer(Map.of("fetch.max.bytes", "1000", "max.partition.fetch.bytes", "1000"))) {
            TopicPartition partition = new TopicPartition(topic + "-default", 0);
            consumer.assign(List.of(partition));
            consumer.seek(partition, 1);
            List<ConsumerRecord<String, String>> records = poll(consumer, 5);
            Report.check(records.stream().allMatch(record -> record.value().equals(large)), "changed");
        }
        return null;
    }

    private Void listOffsets() throws Exception {
        TopicPartition first = new TopicPartition(topic, 0);
        Report.equal(offset(first, OffsetSpec.earliest()).offset(), 0L);
        Report.equal(offset(first, OffsetSpec.latest()).offset(), 250L);
        Report.equal(offset(first, OffsetSpec.maxTimestamp()).offset() >= 0, true);
        Report.equal(offset(first, OffsetSpec.forTimestamp(0)).offset(), 0L);
        Report.equal(offset(first, OffsetSpec.forTimestamp(System.currentTimeMillis() + 1_000_000)).offset(), -1L);
        return null;
    }

    private ListOffsetsResultInfo offset(TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
    }

    private Void consumeAssigned() throws Exception {
        try (var consumer = consumer(Map.of("isolation.level", "read_committed", "max.poll.records", "100"))) {
            List<TopicPartition> all = partitions(4);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<String, String> seen = new TreeMap<>();
            poll(consumer, COUNT).forEach(record -> seen.put(record.key(), record.value()));
            Report.equal(seen.size(), COUNT);
            Report.equal(seen.get("key-999"), "value-999");
            Report.equal(consumer.endOffsets(all).get(all.get(0)), 250L);
            Report.equal(consumer.beginningOffsets(all).get(all.get(0)), 0L);
            Report.equal(consumer.offsetsForTimes(Map.of(all.get(0), 1L)).get(all.get(0)).offset(), 0L);
            consumer.seek(all.get(1), 200);
            consumer.pause(List.of(all.get(0), all.get(2), all.get(3)));
            Report.equal(poll(consumer, 50).get(0).offset(), 200L);
            Report.equal(consumer.currentLag(all.get(1)).orElse(-1), 0L);
        }
        return null;
    }

    private Void outOfRange() throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var consumer = consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 100_000);
            try {
                poll(consumer, 1);
                throw new AssertionError("read past the end");
            } catch (org.apache.kafka.clients.consumer.OffsetOutOfRangeException expected) {
                return null;
            }
        }
    }

    private Void consumeByGroup() throws Exception {
        try (var consumer = consumer(Map.of("group.id", group))) {
            consumer.subscribe(List.of(topic));
            Report.equal(poll(consumer, COUNT + 2).size(), COUNT + 2);
            consumer.commitSync(Map.of(
                new TopicPartition(topic, 0), new OffsetAndMetadata(100, Optional.of(0), "half way"),
                new TopicPartition(topic, 1), new OffsetAndMetadata(250)));
            OffsetAndMetadata committed = consumer.committed(Set.of(new TopicPartition(topic, 0))).get(new TopicPartition(topic, 0));
            Report.equal(committed.offset(), 100L);
            Report.equal(committed.metadata(), "half way");
            ConsumerGroupDescription description = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            Report.equal(description.groupState(), GroupState.STABLE);
            Report.equal(description.members().size(), 1);
            Report.equal(description.members().iterator().next().assignment().topicPartitions().size(), 5);
        }
        return null;
    }

    private Void resume() throws Exception {
        try (var consumer = consumer(Map.of("group.id", group))) {
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<String, String>> records = poll(consumer, 150 + 500 + 2);
            Report.equal(records.stream().filter(record -> record.partition() == 0).mapToLong(ConsumerRecord::offset).min().getAsLong(), 100L);
            Report.check(records.stream().noneMatch(record -> record.partition() == 1), "read again what was committed");
            consumer.commitSync();
        }
        return null;
    }

    private Void rebalance() throws Exception {
        for (String assignor : List.of("CooperativeStickyAssignor", "RangeAssignor", "RoundRobinAssignor")) {
            Map<String, String> values = Map.of("group.id", group + "-" + assignor,
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor, "heartbeat.interval.ms", "300");
            try (var first = consumer(values); var second = consumer(values)) {
                first.subscribe(List.of(topic));
                await(() -> poll1(first) && first.assignment().size() == 5, "the first member doesn't get all");
                second.subscribe(List.of(topic));
                await(() -> {
                    poll1(first);
                    poll1(second);
                    Set<TopicPartition> both = new HashSet<>(first.assignment());
                    both.addAll(second.assignment());
                    return !second.assignment().isEmpty() && !first.assignment().isEmpty() && both.size() == 5
                        && first.assignment().size() + second.assignment().size() == 5;
                }, assignor + ": the second member gets no share");
                second.unsubscribe();
                await(() -> poll1(first) && first.assignment().size() == 5, assignor + ": the first member doesn't get all back");
            }
        }
        return null;
    }

    private Void staticMembership() throws Exception {
        Map<String, String> values = Map.of("group.id", group + "-static", "group.instance.id", "one", "session.timeout.ms", "20000");
        try (var old = consumer(values)) {
            old.subscribe(List.of(topic));
            await(() -> poll1(old) && old.assignment().size() == 5, "no assignment");
            try (var young = consumer(values)) {
                young.subscribe(List.of(topic));
                await(() -> poll1(young) && young.assignment().size() == 5, "the new process with the same instance id gets nothing");
                try {
                    old.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1)));
                    throw new AssertionError("the old process isn't fenced");
                } catch (FencedInstanceIdException expected) {
                    Report.equal(admin.describeConsumerGroups(List.of(group + "-static")).all().get().get(group + "-static")
                        .members().iterator().next().groupInstanceId(), Optional.of("one"));
                }
            }
        }
        return null;
    }

    private Void groupAdministration() throws Exception {
        Report.check(admin.listGroups().all().get().stream().anyMatch(listing -> listing.groupId().equals(group)), "not listed");
        await(() -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState() == GroupState.EMPTY, "not empty");
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        Report.equal(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first).offset(), 250L);
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(7))).all().get();
        Report.equal(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first).offset(), 7L);
        admin.deleteConsumerGroupOffsets(group, Set.of(second)).all().get();
        Report.check(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(second) == null, "not deleted");
        admin.deleteConsumerGroups(List.of(group)).all().get();
        expect(GroupIdNotFoundException.class, admin.deleteConsumerGroups(List.of(group)).all());
        expect(GroupIdNotFoundException.class, admin.describeConsumerGroups(List.of(group)).all());
        return null;
    }

    private Void deleteRecords() throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        Report.equal(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(40))).lowWatermarks().get(partition).get().lowWatermark(), 40L);
        Report.equal(offset(partition, OffsetSpec.earliest()).offset(), 40L);
        expect(OffsetOutOfRangeException.class, admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(100_000))).all());
        Report.equal(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1))).lowWatermarks().get(partition).get().lowWatermark(), 250L);
        return null;
    }

    private Void logDirs() throws Exception {
        int node = admin.describeCluster().nodes().get().iterator().next().id();
        var directories = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        Report.check(directories.values().stream().anyMatch(one -> one.replicaInfos().containsKey(new TopicPartition(topic, 1))), "no replica");
        Report.check(directories.values().stream().allMatch(one -> one.totalBytes().orElse(0) > 0), "no sizes");
        var producers = admin.describeProducers(List.of(new TopicPartition(topic, 1))).all().get();
        Report.equal(producers.get(new TopicPartition(topic, 1)).activeProducers().size(), 1);
        return null;
    }

    private Void elections() throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        var outcome = admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get().get(partition);
        Report.check(outcome.isPresent() && outcome.get() instanceof ElectionNotNeededException, "got " + outcome);
        Report.check(admin.listPartitionReassignments().reassignments().get().isEmpty(), "a reassignment");
        return null;
    }

    private Void quotas() throws Exception {
        ClientQuotaEntity entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, topic));
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1e9))))).all().get();
        everywhere(() -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get()
            .getOrDefault(entity, Map.of()).getOrDefault("producer_byte_rate", 0.0) == 1e9, "not stored");
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", null))))).all().get();
        everywhere(() -> !admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().containsKey(entity), "not removed");
        return null;
    }

    private Void deleteTopics() throws Exception {
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(topicId))).all().get();
        admin.deleteTopics(List.of(topic + "-default")).all().get();
        everywhere(() -> admin.listTopics().names().get().stream().noneMatch(name -> name.startsWith(topic)), "still listed");
        // Another topic may have the name now.
        var again = admin.createTopics(List.of(new NewTopic(topic, 1, factor)));
        Report.check(!again.topicId(topic).get().equals(topicId), "the same topic id");
        Report.equal(offset(new TopicPartition(topic, 0), OffsetSpec.latest()).offset(), 0L);
        admin.deleteTopics(List.of(topic)).all().get();
        return null;
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void await(Condition condition, String message) throws Exception {
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (!condition.holds()) {
            Report.check(System.nanoTime() < deadline, message);
            Thread.sleep(20);
        }
    }

    /** A change that one broker has acknowledged is visible on all at once. Each request may go to another one. */
    private static void everywhere(Condition condition, String message) throws Exception {
        for (int asked = 0; asked < 10; asked++) {
            Report.check(condition.holds(), message);
        }
    }

    private static boolean poll1(KafkaConsumer<String, String> consumer) {
        consumer.poll(Duration.ofMillis(50));
        return true;
    }

    private static List<ConsumerRecord<String, String>> poll(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> all = new ArrayList<>();
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (all.size() < count && System.nanoTime() < deadline) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            records.forEach(all::add);
        }
        Report.check(all.size() >= count, "only " + all.size() + " of " + count + " records");
        return all;
    }
}
