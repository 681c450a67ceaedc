"""The reference serving engine. Read it in the order: sequence, block_pool, scheduler, memory, batch, attention,
paged_model, capture, runner, engine."""
