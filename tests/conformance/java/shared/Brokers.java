import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/** How clients reach the brokers. All programs of these tests have this class. */
final class Brokers {
    private Brokers() {
    }

    /** The brokers' addresses, and the properties of the file that CLIENT_PROPERTIES names, such as those of a login. */
    static Map<String, Object> at(String bootstrap) {
        Map<String, Object> found = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        String file = System.getenv("CLIENT_PROPERTIES");
        if (file != null) {
            Properties properties = new Properties();
            try (var reader = Files.newBufferedReader(Path.of(file))) {
                properties.load(reader);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            properties.forEach((name, value) -> found.put((String) name, value));
        }
        return found;
    }

    /** As `at`, with further properties. */
    static Map<String, Object> at(String bootstrap, Map<String, String> more) {
        Map<String, Object> found = at(bootstrap);
        found.putAll(more);
        return found;
    }
}
