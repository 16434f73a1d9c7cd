"""Checks that run in other Spark environments: on a standalone cluster of two workers, and on Spark Connect."""
