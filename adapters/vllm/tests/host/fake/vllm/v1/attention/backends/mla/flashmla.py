from types import SimpleNamespace

import vllm


class FlashMLASchedMeta:
    tile_scheduler_metadata = None
    num_splits = None


def get_mla_metadata(*args):
    raise AssertionError("the CUDA extension is not here")


def get_mla_metadata_dense_fp8(*args):
    raise AssertionError("the CUDA extension is not here")


class FlashMLAMetadataBuilder:
    def _build_decode(
        self,
        block_table_tensor,
        seq_lens_device,
        max_seq_len,
        query_start_loc_cpu,
        query_start_loc_device,
        num_decode_tokens,
        dcp_tot_seq_lens_device,
    ):
        meta, _ = get_mla_metadata()
        tiles, splits = get_mla_metadata_dense_fp8(seq_lens_device, 1, self.num_q_heads)
        if self.compilation_config.cudagraph_mode.has_full_cudagraphs():
            assert self.cg_buf_tile_scheduler_metadata is not None
            if "35175" not in vllm.BUGS:
                self.cg_buf_tile_scheduler_metadata[: len(tiles)].copy_(tiles)
                self.cg_buf_num_splits[: len(splits)].copy_(splits)
                tiles = self.cg_buf_tile_scheduler_metadata[: len(tiles)]
                splits = self.cg_buf_num_splits[: len(splits)]
        meta.tile_scheduler_metadata, meta.num_splits = tiles, splits
        return SimpleNamespace(scheduler_metadata=meta)


if "called-as-0.33" in vllm.BUGS:
    _build_decode = FlashMLAMetadataBuilder._build_decode

    def _build_decode_of_0_33(self, *, max_query_len, **given):
        assert max_query_len == 1 and self.dcp_world_size == 1
        return _build_decode(self, **given)

    FlashMLAMetadataBuilder._build_decode = _build_decode_of_0_33
