"""The methods: each a view of the weights plus an objective, with its settings."""
