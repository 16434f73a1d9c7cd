"""Conversations: starting, sending, receiving and ending, one endpoint at a time."""
