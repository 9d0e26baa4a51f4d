"""All that changes when PyTorch changes: step hooks, parameters, shards, modes."""
