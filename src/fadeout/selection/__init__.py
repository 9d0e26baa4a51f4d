"""The k lowest of many numbers; knows tensors only."""
