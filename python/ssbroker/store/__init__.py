"""SQLite files of an instance; the only package with SQL of the library."""
