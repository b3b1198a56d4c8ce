"""Change data capture: events that come late, twice and in any order, applied to Delta tables."""
