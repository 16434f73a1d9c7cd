"""From the transmission queue to where messages belong, within the instance."""
