"""Ways of storing a model in a folder, one class each; `registry.STORAGE` lists them."""
