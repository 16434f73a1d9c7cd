"""Shows a running instance: the live page of `ssbroker serve` with metrics and health, and the states for `ssbroker watch`."""
