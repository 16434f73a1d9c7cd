"""An instance among others: its connections, what goes over them, and what is carried for others."""
