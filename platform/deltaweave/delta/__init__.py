"""The one door to Delta's JVM classes: all py4j lives here."""
