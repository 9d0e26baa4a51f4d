"""What a run leaves on disk: its folder, checkpoints, records."""
