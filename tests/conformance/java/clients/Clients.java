/**
 * A program that uses Apache Kafka's Java clients against a broker.
 *
 * <pre>
 * Clients BOOTSTRAP round-trip PREFIX FACTOR   calls every API of the clients, on topics whose names begin with PREFIX;
 *                                              FACTOR is their number of replicas, which is also the brokers' default
 * Clients BOOTSTRAP produce TOPIC=CODEC...     writes the records of the codec tests
 * Clients BOOTSTRAP digest TOPIC...            prints the digest of each topic's records
 * Clients BOOTSTRAP transactional PREFIX FACTOR   transactions, on topics with FACTOR replicas
 * </pre>
 */
public final class Clients {
    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        Report report = new Report();
        switch (arguments[1]) {
            case "round-trip" -> new RoundTrip(bootstrap, arguments[2], Short.parseShort(arguments[3]), report).run();
            case "transactional" ->
                    new Transactional(bootstrap, arguments[2], Short.parseShort(arguments[3]), report).run();
            case "produce" -> {
                for (int i = 2; i < arguments.length; i++) {
                    String[] pair = arguments[i].split("=");
                    report.step(pair[0], () -> {
                        Records.produce(bootstrap, pair[0], pair[1]);
                        return null;
                    });
                }
            }
            case "digest" -> {
                for (int i = 2; i < arguments.length; i++) {
                    String topic = arguments[i];
                    report.step(topic, () -> {
                        System.out.println("digest " + topic + " " + Records.digest(bootstrap, topic));
                        return null;
                    });
                }
            }
            default -> throw new IllegalArgumentException(arguments[1]);
        }
        report.exit();
    }
}
