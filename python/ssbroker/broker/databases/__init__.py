"""The databases of an instance: made, opened, changed, and their identity (I1 to I8)."""
