"""The reference serving engine.

Read in this order: schedule/ (config, sequence, block_pool, scheduler), memory, batch, attention,
sparse_attention, linear_attention, paged_model, probe, capture, speculation, runner, engine.
"""
