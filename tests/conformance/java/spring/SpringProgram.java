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
import org.springframework.kafka.support.Acknowledgment;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.messaging.handler.annotation.SendTo;

/**
 * SpringProgram BOOTSTRAP TOPIC FACTOR: a template sends records, a listener with three threads sends an answer for each
 * to another topic, and a second listener counts the answers.
 */
@Configuration
@EnableKafka
public class SpringProgram {
    private static final int COUNT = 300;
    private static final Set<String> ANSWERS = ConcurrentHashMap.newKeySet();
    private static final CountDownLatch DONE = new CountDownLatch(COUNT);
    private static String bootstrap;
    private static int factor;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        factor = Integer.parseInt(arguments[2]);
        System.setProperty("topic", arguments[1]);
        try (var context = new AnnotationConfigApplicationContext(SpringProgram.class)) {
            @SuppressWarnings("unchecked")
            KafkaTemplate<String, String> template = context.getBean(KafkaTemplate.class);
            for (int i = 0; i < COUNT; i++) {
                template.send(arguments[1], "key-" + i, "value-" + i).get(20, TimeUnit.SECONDS);
            }
            boolean all = DONE.await(60, TimeUnit.SECONDS);
            System.out.println(all ? "ok " + ANSWERS.size() : "failed: only " + ANSWERS.size() + " answers");
        }
        System.exit(0);
    }

    @KafkaListener(id = "answering", topics = "${topic}", concurrency = "3")
    @SendTo("${topic}-answers")
    public String answer(String value, @Header("kafka_receivedMessageKey") String key) {
        return key + "=" + value;
    }

    @KafkaListener(id = "counting", topics = "${topic}-answers")
    public void count(String value, Acknowledgment acknowledgment) {
        if (ANSWERS.add(value)) {
            DONE.countDown();
        }
        acknowledgment.acknowledge();
    }

    @Bean
    public KafkaAdmin admin() {
        return new KafkaAdmin(Brokers.at(bootstrap));
    }

    @Bean
    public NewTopic requests() {
        return TopicBuilder.name(System.getProperty("topic")).partitions(6).replicas(factor).build();
    }

    @Bean
    public NewTopic answers() {
        return TopicBuilder.name(System.getProperty("topic") + "-answers").partitions(2).replicas(factor).build();
    }

    @Bean
    public KafkaTemplate<String, String> template() {
        return new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(Brokers.at(bootstrap),
            new StringSerializer(), new StringSerializer()));
    }

    @Bean
    public ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory() {
        var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
        factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(Brokers.at(bootstrap, Map.of("auto.offset.reset", "earliest")),
            new StringDeserializer(), new StringDeserializer()));
        factory.setReplyTemplate(template());
        factory.getContainerProperties().setAckMode(ContainerProperties.AckMode.MANUAL_IMMEDIATE);
        return factory;
    }
}
