import os

import vllm


class FullAttentionManager:
    def __init__(self, spec, block_pool, enable_caching, kv_cache_group_id) -> None:
        self.spec, self.pool, self.counts, self.new = spec, block_pool, {}, []

    def allocate_new_blocks(self, request_id, num_tokens, num_tokens_main_model):
        if "dies" in vllm.BUGS:
            os.abort()
        if "renamed" in vllm.BUGS:
            raise TypeError("got an unexpected keyword argument 'num_tokens_main_model'")
        wanted = -(-num_tokens // self.spec.block_size) - self.counts.get(request_id, 0)
        self.counts[request_id] = self.counts.get(request_id, 0) + wanted
        blocks = [self.pool.take() for _ in range(wanted)]
        if "43961" not in vllm.BUGS:
            self.new += [block.block_id for block in blocks]
        return blocks

    def take_new_block_ids(self):
        ids, self.new = self.new, []
        return ids
