"""Methods that another library carries out, where it is installed."""
