"""The SQLite files of an instance, and their SQL. The SQL of the fast path, including the INSERTs of messages, is in `rust/store`."""
