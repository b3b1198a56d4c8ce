"""The change data capture demo: Kafka, Debezium's events, and a table read as base and changes."""
