"""Instances as tables of Spark: what the format `ssbroker` reads and writes, without a word of Spark."""
