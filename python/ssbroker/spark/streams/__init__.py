"""Structured Streaming: fragments put together and messages routed as they come, with what waits kept in Spark's state."""
