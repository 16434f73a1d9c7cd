"""The endpoint: sockets, TLS, who may connect, and which of two connections stays."""
