"""SQLite files of an instance, and their SQL; that of the fast path, with the INSERTs of messages, is in `rust/store`."""
