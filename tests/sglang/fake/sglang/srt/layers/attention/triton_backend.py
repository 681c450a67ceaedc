"""The attention backend."""


class TritonAttnBackend:
    def get_cuda_graph_seq_len_fill_value(self):
        return 1
