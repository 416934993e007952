"""`python -m slimformer`, which is how `accelerate launch -m` and `torchrun -m` start a command."""

from slimformer.cli import main

main()
