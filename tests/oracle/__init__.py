"""A slow, literal reading of the rules, which judges the fast implementation."""
