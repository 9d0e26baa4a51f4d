"""What is pruned as one unit, and which units are lowest."""
