"""Public kernels with their adapters: what `docs/data/public-kernels.md` judges. Nothing of them is here.

Each file reads the kernel from an unpacked wheel of the registry, which an environment variable
names, and stubs what its package imports and no kernel needs.
"""
