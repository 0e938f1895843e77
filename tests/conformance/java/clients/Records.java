import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The records that every client of the codec tests writes, and the digest by which clients check one another's. */
final class Records {
    static final int COUNT = 300;
    private static final long FIRST_TIMESTAMP = 1_700_000_000_000L;

    static ProducerRecord<byte[], byte[]> record(String topic, int i) {
        byte[] key = i % 7 == 0 ? null : bytes("key-" + i);
        byte[] value = i % 7 == 3 ? null : bytes(("value " + i + " ").repeat(20));
        List<Header> headers = new ArrayList<>();
        if (i % 3 == 0) {
            headers.add(new RecordHeader("number", bytes(Integer.toString(i))));
            headers.add(new RecordHeader("empty", new byte[0]));
        }
        return new ProducerRecord<>(topic, 0, FIRST_TIMESTAMP + i, key, value, headers);
    }

    static void produce(String bootstrap, String topic, String codec) throws Exception {
        Properties properties = new Properties();
        properties.putAll(Map.of("bootstrap.servers", bootstrap, "compression.type", codec, "linger.ms", "20"));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 0; i < COUNT; i++) {
                sent.add(producer.send(record(topic, i)));
            }
            producer.flush();
            for (int i = 0; i < COUNT; i++) {
                Report.equal(sent.get(i).get().offset(), (long) i);
            }
        }
    }

    static String digest(String bootstrap, String topic) throws Exception {
        Properties properties = new Properties();
        properties.putAll(Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest", "check.crcs", "true",
            "fetch.max.wait.ms", "50"));
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        int seen = 0;
        try (var consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long deadline = System.nanoTime() + 20_000_000_000L;
            while (seen < COUNT && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    sha.update(bytes(line(record)));
                    seen++;
                }
            }
        }
        Report.equal(seen, COUNT);
        return HexFormat.of().formatHex(sha.digest());
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            headers.append(header.key()).append('=').append(hex(header.value())).append(';');
        }
        return record.offset() + "|" + record.timestamp() + "|" + hex(record.key()) + "|" + hex(record.value()) + "|" + headers + "\n";
    }

    private static String hex(byte[] data) {
        return data == null ? "-" : HexFormat.of().formatHex(data);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
