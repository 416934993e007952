"""Run as a program: opens a GGUF file by llama.cpp, prints where it is served, and stops with its standard input.

A process of its own, since llama.cpp ends the one it is in where a file is not as it expects.
"""

from __future__ import annotations

import sys


def main(path: str, embeds: bool) -> None:
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 256
    settings.n_parallel, settings.n_gpu_layers = 1, 0
    settings.warmup = settings.fit_params = False
    settings.verbosity = -1
    settings.embedding = embeds
    settings.cpuparams.n_threads = 1
    # Keys and values in 16 bits, its default, would be rounding of its own.
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(settings)
    sys.stdout.write(f"serving {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "embeds")
