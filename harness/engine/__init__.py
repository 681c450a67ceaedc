"""The reference serving engine.

Read in this order: schedule/ (sequence, block_pool, zeroing, scheduler), memory, batch, attention, window_attention,
token_selection, sparse_attention, paged_model, capture, verification, runner, engine.
"""
