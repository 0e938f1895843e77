import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * WordCount BOOTSTRAP INPUT OUTPUT STATE-FOLDER GUARANTEE: counts words until its standard input ends. The guarantee is
 * at_least_once or exactly_once_v2. Each word's count is written after each line, because nothing is cached.
 */
public final class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2] + "-application");
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[4]);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "2");
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, arguments[4].equals(StreamsConfig.EXACTLY_ONCE_V2) ? "100" : "500");
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        properties.put("session.timeout.ms", "3000"); // so that the group soon does without a process that was killed
        properties.put("heartbeat.interval.ms", "500");
        properties.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[1], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.toLowerCase(Locale.ROOT).split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(arguments[2], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        CountDownLatch running = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.countDown();
            }
        });
        streams.start();
        System.out.println(running.await(60, TimeUnit.SECONDS) ? "running" : "not running");
        System.out.flush();
        while (System.in.read() >= 0) { }
        System.out.println(streams.close(Duration.ofSeconds(30)) ? "closed" : "not closed");
        System.out.flush();
        System.exit(0);
    }
}
