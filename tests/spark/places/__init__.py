"""What is tried on other kinds of sessions than the one of the tests: on a cluster of two executors, and through Spark Connect."""
