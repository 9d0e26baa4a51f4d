"""What the paper did, done again: runs, sweeps over them, its published values, and a report."""
