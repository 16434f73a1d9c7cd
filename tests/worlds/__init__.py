"""Small worlds of edge cases for routing, from a seed or from Hypothesis, and their conversion to and from Arrow."""
