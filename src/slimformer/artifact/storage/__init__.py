"""Ways of storing the weights of an artifact."""
