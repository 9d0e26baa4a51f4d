"""What the paper did, done again: runs, sweeps over them, and a report."""
