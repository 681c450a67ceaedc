"""The reference serving engine.

Read in this order: schedule/ (config, block_pool, scheduler), memory, batch, attention, sparse_attention, paged_model,
capture, speculation, runner, engine.
"""
