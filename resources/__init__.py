"""This deployment's wiring: which Spark, which storage, one place for each environment."""
