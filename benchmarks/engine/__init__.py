"""The parts of `runtime.py`: the native engine beside other runtimes, from products of matrices to new processes."""
