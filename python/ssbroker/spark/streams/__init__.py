"""Structured Streaming: reassembles fragments and routes messages as they arrive, with pending messages in Spark's state store."""
