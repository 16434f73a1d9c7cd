"""Checks that run in other Spark environments: on a cluster of two executors, and on Spark Connect."""
