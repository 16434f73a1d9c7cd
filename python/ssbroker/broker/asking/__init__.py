"""Dynamic routing: the request for a route that is missing (R61, R62)."""
