"""The tests of ssbroker."""
