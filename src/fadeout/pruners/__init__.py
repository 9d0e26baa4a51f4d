"""What the pruners of all methods share: a target, the step that they act in, a summary of themselves."""
