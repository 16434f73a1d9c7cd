"""Conversations with other instances: what arrives for them, what they send, and the keys of secured dialogs."""
