"""An instance while it is served, and how it tells how it is doing (N28)."""
