"""The text for Prometheus, parsed by prometheus-client's own parser."""

import math

from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.exposition import Histogram, Sum, lines, powers_of_two


def parsed(name: str, kind: str, samples: list) -> list:
    text = "".join(lines(name, kind, 'what\nit "is" \\', samples))
    (family,) = text_string_to_metric_families(text)
    assert family.documentation == 'what\nit "is" \\'
    assert family.type == kind
    return [(sample.name, sample.labels, sample.value) for sample in family.samples]


def test_values_and_labels_survive() -> None:
    nasty = 'a"b\\c\nd'
    samples = [
        ((), 3),
        ((("topic", nasty), ("partition", "0")), 2**62),
        ((("topic", "x"),), 0.25),
        ((("topic", "y"),), math.inf),
        ((("topic", "z"),), -math.inf),
        ((("topic", "t"),), True),
    ]
    assert parsed("some_metric", "gauge", samples) == [
        ("some_metric", {}, 3),
        ("some_metric", {"topic": nasty, "partition": "0"}, 2**62),
        ("some_metric", {"topic": "x"}, 0.25),
        ("some_metric", {"topic": "y"}, math.inf),
        ("some_metric", {"topic": "z"}, -math.inf),
        ("some_metric", {"topic": "t"}, 1),
    ]


def test_histograms_are_cumulated() -> None:
    got = parsed("h", "histogram", [((("request", "Fetch"),), Histogram([1, 2.5], [3, 0, 4], 17.5))])
    assert got == [
        ("h_bucket", {"request": "Fetch", "le": "1"}, 3),
        ("h_bucket", {"request": "Fetch", "le": "2.5"}, 3),
        ("h_bucket", {"request": "Fetch", "le": "+Inf"}, 7),
        ("h_sum", {"request": "Fetch"}, 17.5),
        ("h_count", {"request": "Fetch"}, 7),
    ]


def test_sums() -> None:
    assert parsed("s", "summary", [((), Sum(4, 2.0))]) == [("s_sum", {}, 2.0), ("s_count", {}, 4)]


def test_powers_of_two_lose_nothing() -> None:
    buckets = list(range(1, 33))
    histogram = powers_of_two(buckets, 4, 10, 0.5, 100)
    assert histogram.bounds == [2**i * 0.5 for i in range(4, 11)]
    assert sum(histogram.counts) == sum(buckets)
    assert histogram.counts[0] == sum(buckets[:5])
    assert histogram.counts[1] == buckets[5]
    assert histogram.counts[-1] == sum(buckets[11:])
    assert histogram.total == 50
