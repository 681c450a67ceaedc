"""The adapter of Hugging Face's transformers: continuous batching beside plain `generate`."""
