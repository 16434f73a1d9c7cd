"""DDL carried out on an instance, batch by batch."""
