"""A running instance: its databases, its conversations, and what happens to them over time."""
