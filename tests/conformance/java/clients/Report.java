import java.util.concurrent.Callable;

/** Runs steps, and prints one line for each on standard output: "ok NAME" or "failed NAME: why". */
final class Report {
    private boolean failed;

    void step(String name, Callable<Void> body) {
        long start = System.nanoTime();
        try {
            body.call();
            System.out.println("ok " + name + " " + (System.nanoTime() - start) / 1_000_000 + " ms");
        } catch (Throwable error) {
            failed = true;
            Throwable cause = error;
            while (cause.getCause() != null && cause instanceof java.util.concurrent.ExecutionException) {
                cause = cause.getCause();
            }
            System.out.println("failed " + name + ": " + String.valueOf(cause).replace('\n', ' '));
        }
    }

    void exit() {
        System.out.flush();
        System.exit(failed ? 1 : 0);
    }

    static void check(boolean condition, String message) {
        if (!condition) {
            throw new AssertionError(message);
        }
    }

    static void equal(Object actual, Object expected) {
        check(java.util.Objects.equals(actual, expected), "expected " + expected + ", got " + actual);
    }
}
