"""What happens in one transaction of a database, and what others are told of it."""
