"""Benchmarks of Ottla against Apache Kafka: one file per question, both brokers in the same run."""
