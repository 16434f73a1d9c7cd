"""Routes and reassembles Parquet files inside the workers: no rows pass between the JVM and Python."""
