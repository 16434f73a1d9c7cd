"""A running instance: its databases, its conversations, and its background work."""
