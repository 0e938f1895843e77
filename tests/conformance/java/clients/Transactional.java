import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions: commits and aborts, offsets in transactions, fencing, and what the admin client shows. */
final class Transactional {
    private static final int PARTITIONS = 3;
    private static final int TRANSACTIONS = 12;
    private static final int RECORDS = 60;
    private final String bootstrap;
    private final String prefix;
    private final short factor;
    private final Report report;

    Transactional(String bootstrap, String prefix, short factor, Report report) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
        this.factor = factor;
        this.report = report;
    }

    void run() {
        report.step("readers of committed records see whole transactions only", () -> {
            String topic = created("ends");
            Set<String> committed = new HashSet<>();
            try (var producer = producer("ends")) {
                producer.initTransactions();
                for (int number = 0; number < TRANSACTIONS; number++) {
                    producer.beginTransaction();
                    for (int i = 0; i < RECORDS; i++) {
                        String value = number + "-" + i;
                        producer.send(new ProducerRecord<>(topic, i % PARTITIONS, null, value));
                        if (number % 3 != 1) {
                            committed.add(value);
                        }
                    }
                    if (number % 3 == 1) {
                        producer.flush();
                        producer.abortTransaction();
                    } else {
                        producer.commitTransaction();
                    }
                }
            }
            List<String> read = read(topic, "read_committed");
            Report.equal(read.size(), committed.size());
            Report.equal(new HashSet<>(read), committed);
            Report.equal(read(topic, "read_uncommitted").size(), TRANSACTIONS * RECORDS);
            return null;
        });
        report.step("offsets count with the transaction, or not at all", () -> {
            String from = created("from");
            String to = created("to");
            try (var producer = new KafkaProducer<>(common(), new StringSerializer(), new StringSerializer())) {
                for (int i = 0; i < TRANSACTIONS * RECORDS; i++) {
                    producer.send(new ProducerRecord<>(from, i % PARTITIONS, null, "" + i));
                }
            }
            copy(from, to, prefix + "-copy");
            List<String> copied = read(to, "read_committed");
            Report.equal(copied.size(), TRANSACTIONS * RECORDS);
            Report.equal(new HashSet<>(copied).size(), TRANSACTIONS * RECORDS);
            return null;
        });
        report.step("a successor fences", () -> {
            String topic = created("fence");
            try (var first = producer("fence"); var second = producer("fence")) {
                first.initTransactions();
                first.beginTransaction();
                first.send(new ProducerRecord<>(topic, 0, null, "of the first")).get();
                second.initTransactions();
                second.beginTransaction();
                second.send(new ProducerRecord<>(topic, 0, null, "of the second")).get();
                try {
                    first.commitTransaction();
                    throw new AssertionError("the fenced producer could commit");
                } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                    // as it has to be
                }
                second.commitTransaction();
            }
            Report.equal(read(topic, "read_committed"), List.of("of the second"));
            return null;
        });
        report.step("the admin client lists, describes and fences", () -> {
            String topic = created("admin");
            String id = prefix + "-admin";
            try (var producer = producer("admin"); Admin admin = Admin.create(common())) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 1, null, "open")).get();
                var described = admin.describeTransactions(List.of(id)).description(id).get();
                Report.equal(described.state(), TransactionState.ONGOING);
                Report.equal(described.topicPartitions(), Set.of(new TopicPartition(topic, 1)));
                Report.check(described.transactionStartTimeMs().isPresent(), "no start");
                var listed = admin.listTransactions().all().get().stream().filter(each -> each.transactionalId().equals(id));
                Report.equal(listed.map(each -> each.state()).toList(), List.of(TransactionState.ONGOING));
                var producers = admin.describeProducers(List.of(new TopicPartition(topic, 1)))
                        .partitionResult(new TopicPartition(topic, 1)).get().activeProducers();
                Report.equal(producers.get(0).currentTransactionStartOffset().getAsLong(), 0L);
                admin.fenceProducers(List.of(id)).all().get();
                try {
                    producer.commitTransaction();
                    throw new AssertionError("the fenced producer could commit");
                } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                    // as it has to be
                }
            }
            Report.equal(read(topic, "read_committed"), List.of());
            return null;
        });
    }

    /** Copies a topic by a group whose offsets are in the transactions. Every third transaction is aborted. */
    private void copy(String from, String to, String group) {
        Properties properties = common();
        properties.put("group.id", group);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("isolation.level", "read_committed");
        properties.put("max.poll.records", "" + RECORDS);
        try (var consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
                var producer = producer("copy")) {
            producer.initTransactions();
            consumer.subscribe(List.of(from));
            int done = 0;
            long end = System.nanoTime() + 60_000_000_000L;
            for (int number = 0; done < TRANSACTIONS * RECORDS && System.nanoTime() < end; ) {
                var records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(to, record.partition(), null, record.value()));
                    offsets.put(new TopicPartition(from, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (++number % 3 == 0) {
                    producer.abortTransaction();
                    var present = consumer.committed(consumer.assignment());
                    present.forEach((partition, offset) -> consumer.seek(partition, offset == null ? 0 : offset.offset()));
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
            }
        }
    }

    private String created(String name) throws Exception {
        String topic = prefix + "-" + name;
        try (Admin admin = Admin.create(common())) {
            admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, factor))).all().get();
        }
        return topic;
    }

    private Properties common() {
        Properties properties = new Properties();
        properties.putAll(Brokers.at(bootstrap));
        return properties;
    }

    private KafkaProducer<String, String> producer(String name) {
        Properties properties = common();
        properties.put("transactional.id", prefix + "-" + name);
        properties.put("batch.size", "400"); // so that several batches of a partition are under way
        properties.put("linger.ms", "1");
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    /** All values of a topic, up to its end for that isolation level. */
    private List<String> read(String topic, String isolation) {
        Properties properties = common();
        properties.put("isolation.level", isolation);
        List<String> values = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int partition = 0; partition < PARTITIONS; partition++) {
                partitions.add(new TopicPartition(topic, partition));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long until = System.nanoTime() + 30_000_000_000L;
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                Report.check(System.nanoTime() < until, "not all records came: " + values.size());
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
            }
        }
        return values;
    }
}
