"""Readers of queues, started and ended as they are needed (facts 143, 144)."""
