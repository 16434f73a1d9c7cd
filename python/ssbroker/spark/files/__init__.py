"""Files of Parquet routed and put together where they stand: no row crosses between the JVM and Python."""
