"""Weights, gradients and optimizer divided over processes (FSDP2), the same on CPUs as on GPUs.

Transformers and Accelerate divide on GPUs alone, and leave a model divided when they are done. Here it is divided
before the loop begins and put together again in place, with the very modules and parameters that it had, once it ends.
"""
