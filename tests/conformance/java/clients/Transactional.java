import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringSerializer;

/** Ottla has no transactions yet: initTransactions has to fail at once with a fatal error, without waiting or a retry. */
final class Transactional {
    static void run(String bootstrap, Report report) {
        report.step("initTransactions is refused at once", () -> {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", bootstrap);
            properties.put("transactional.id", "conformance-java");
            properties.put("max.block.ms", "30000");
            long start = System.nanoTime();
            try (var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
                try {
                    producer.initTransactions();
                    throw new AssertionError("accepted");
                } catch (TimeoutException hung) {
                    throw new AssertionError("hung until max.block.ms", hung);
                } catch (org.apache.kafka.common.KafkaException refused) {
                    long seconds = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - start);
                    Report.check(seconds < 10, "refused only after " + seconds + " s: " + refused);
                    System.out.println("refused with " + refused + " / " + refused.getCause());
                }
                try {
                    producer.beginTransaction();
                    throw new AssertionError("the error wasn't fatal");
                } catch (org.apache.kafka.common.KafkaException | IllegalStateException fatal) {
                    System.out.println("and then " + fatal);
                }
            }
            return null;
        });
    }
}
