"""How channels flow through a traced network."""
