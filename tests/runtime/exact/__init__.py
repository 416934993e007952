"""What encoders on the engine are to compute, written a second time in NumPy, without the engine."""
