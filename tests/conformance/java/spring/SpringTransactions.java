import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.config.TopicBuilder;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaAdmin;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * SpringTransactions BOOTSTRAP TOPIC FACTOR: a template writes records in transactions, of which it aborts some. A
 * listener with three threads answers each record in the transaction that holds the record's offset. Where the listener
 * fails after its answer, the answer is aborted, and the record comes again. Another listener counts the committed
 * answers.
 */
@Configuration
@EnableKafka
public class SpringTransactions {
    private static final int TRANSACTIONS = 30;
    private static final int EACH = 10;
    private static final Map<String, Integer> ANSWERS = new ConcurrentHashMap<>();
    private static final Set<String> FAILED = ConcurrentHashMap.newKeySet();
    private static final CountDownLatch DONE = new CountDownLatch(TRANSACTIONS * EACH * 2 / 3);
    private static String bootstrap;
    private static int factor;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        factor = Integer.parseInt(arguments[2]);
        System.setProperty("topic", topic);
        try (var context = new AnnotationConfigApplicationContext(SpringTransactions.class)) {
            @SuppressWarnings("unchecked")
            KafkaTemplate<String, String> template = context.getBean(KafkaTemplate.class);
            for (int number = 0; number < TRANSACTIONS; number++) {
                write(template, number);
            }
            boolean all = DONE.await(60, TimeUnit.SECONDS);
            Thread.sleep(1000); // in which a second answer to a record would come
            long twice = ANSWERS.values().stream().filter(times -> times > 1).count();
            long wrong = ANSWERS.keySet().stream().filter(answer -> answer.contains("aborted")).count();
            System.out.println((all && twice == 0 && wrong == 0 ? "ok " : "failed ") + ANSWERS.size() + " answers, "
                + twice + " more than once, " + wrong + " to aborted records, " + FAILED.size() + " failures");
        }
        System.exit(0);
    }

    /** Writes the records of a transaction. Every third transaction is aborted. */
    private static void write(KafkaTemplate<String, String> template, int number) {
        boolean aborted = number % 3 == 1;
        try {
            template.executeInTransaction(operations -> {
                for (int i = 0; i < EACH; i++) {
                    operations.send(topic, "key-" + i, (aborted ? "aborted-" : "value-") + number + "-" + i).join();
                }
                if (aborted) {
                    throw new IllegalStateException("so that the transaction is aborted");
                }
                return null;
            });
        } catch (IllegalStateException expected) {
            if (!aborted) {
                throw expected;
            }
        }
    }

    @KafkaListener(id = "answering", topics = "${topic}", concurrency = "3")
    public void answer(String value) {
        template().send(topic + "-answers", value);
        if (value.endsWith("-7") && FAILED.add(value)) {
            throw new IllegalStateException("so that the answer is aborted and the record comes again");
        }
    }

    @KafkaListener(id = "counting", topics = "${topic}-answers")
    public void count(String value) {
        if (ANSWERS.merge(value, 1, Integer::sum) == 1) {
            DONE.countDown();
        }
    }

    @Bean
    public KafkaAdmin admin() {
        return new KafkaAdmin(Brokers.at(bootstrap));
    }

    @Bean
    public NewTopic requests() {
        return TopicBuilder.name(topic).partitions(6).replicas(factor).build();
    }

    @Bean
    public NewTopic answers() {
        return TopicBuilder.name(topic + "-answers").partitions(2).replicas(factor).build();
    }

    @Bean
    public ProducerFactory<String, String> producers() {
        var factory = new DefaultKafkaProducerFactory<>(Brokers.at(bootstrap),
            new StringSerializer(), new StringSerializer());
        factory.setTransactionIdPrefix(topic + "-");
        return factory;
    }

    @Bean
    public KafkaTemplate<String, String> template() {
        return new KafkaTemplate<>(producers());
    }

    @Bean
    public KafkaTransactionManager<String, String> transactions() {
        return new KafkaTransactionManager<>(producers());
    }

    @Bean
    public ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory() {
        var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
        factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(Brokers.at(bootstrap, Map.of(
            "auto.offset.reset", "earliest", "isolation.level", "read_committed", "enable.auto.commit", "false")),
            new StringDeserializer(), new StringDeserializer()));
        factory.getContainerProperties().setKafkaAwareTransactionManager(transactions());
        factory.setAfterRollbackProcessor(new DefaultAfterRollbackProcessor<>(new FixedBackOff(0, 5)));
        return factory;
    }
}
