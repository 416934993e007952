"""The loop of Transformers with what slimformer needs done differently."""
