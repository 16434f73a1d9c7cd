"""The system's views as Arrow tables."""
