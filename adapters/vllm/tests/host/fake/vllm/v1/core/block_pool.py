from types import SimpleNamespace


class BlockPool:
    def __init__(self, num_gpu_blocks: int, enable_caching: bool, hash_block_size: int) -> None:
        self.free = list(range(1, num_gpu_blocks))

    def take(self):
        return SimpleNamespace(block_id=self.free.pop(0))
