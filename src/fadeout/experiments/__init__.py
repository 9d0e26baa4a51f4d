"""Experiments: the published values, and what reruns and compares them."""
