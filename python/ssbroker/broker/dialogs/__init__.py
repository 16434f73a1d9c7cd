"""Conversations: begun, sent on, received from, ended; one side at a time."""
