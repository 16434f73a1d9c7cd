"""What stands in a database: message types, contracts, queues, services, routes, priorities, users, keys."""
