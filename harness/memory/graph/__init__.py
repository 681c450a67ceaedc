"""Captured graphs: recordings of launches on fixed addresses, on a CPU as with CUDA."""
