"""Connects the instance to its peers: connections, dialog exchange, forwarding, monitoring."""
