"""Connects the instance to its peers: connections, dialogs, keys, forwarding."""
