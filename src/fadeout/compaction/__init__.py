"""Dead channels are cut out."""
