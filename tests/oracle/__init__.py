"""A slow, literal implementation of the rules, the reference for the fast one."""
