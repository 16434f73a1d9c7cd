"""Small nasty worlds to route in, from a seed or from Hypothesis, and their way into Arrow and back."""
