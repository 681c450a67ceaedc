"""Edits that were written without a look at the cases, of other kinds than those of `engine.py`:
ranks, scales, owners, repeats of rows, what a graph's inputs miss.
"""

from __future__ import annotations

from trust.edits.edit import ENGINE, Edit

SCHEDULER = ENGINE + "schedule.scheduler:Scheduler."
UNSEEN_WRONG = (
    Edit(
        "chunk-past-the-context",
        ENGINE + "attention:context_chunks",
        "min(start + share, length)",
        "start + share if start < length else length",
        memory=True,
    ),
    Edit(
        "all-prompts-have-context",
        ENGINE + "attention:tokens_with_context",
        "requests[num_with_context - 1].end - requests[0].start",
        "requests[-1].end - requests[0].start",
        memory=True,
    ),
    Edit(
        "refused-drafts-stay-cached",
        ENGINE + "engine:ReferenceEngine._advance",
        "sequence.num_computed_tokens += len(given)",
        "sequence.num_computed_tokens += len(tokens)",
    ),
    Edit(
        "state-of-the-whole-prompt",
        SCHEDULER + "_share_prefix",
        "self.pool.state_after(wanted[:num_shared])",
        "self.pool.state_after(wanted)",
        memory=True,
    ),
    Edit(
        "pages-behind-the-window-freed-again",
        SCHEDULER + "_release",
        "sequence.window_blocks[sequence.num_evicted_pages :]",
        "sequence.window_blocks",
    ),
    Edit(
        "pages-behind-the-window-still-gone",
        SCHEDULER + "_release",
        "sequence.num_evicted_pages = 0",
        "pass",
        memory=True,
    ),
    Edit(
        "lengths-not-copied",
        ENGINE + "batch:fill_static",
        "static.decode.seq_lens[:num_live] = live.decode.seq_lens",
        "pass",
        memory=True,
    ),
    Edit(
        "adapters-of-the-capture",
        ENGINE + "batch:fill_static",
        "held[:rows] = given",
        "pass",
    ),
    Edit(
        "live-rows-of-the-capture",
        ENGINE + "batch:fill_static",
        "static.decode.num_live.copy_(live.decode.num_live)",
        "pass",
        memory=True,
    ),
    Edit(
        "state-of-a-prompt-not-stored",
        ENGINE + "linear_attention:PagedKDA._prefill",
        "ssm_state = ssm[block]",
        "ssm_state = ssm[block].clone()",
        memory=True,
    ),
    Edit(
        "padding-stores-its-convolution",
        ENGINE + "linear_attention:update_states",
        "torch.where(live, conv_rows, conv_before)",
        "conv_rows",
        memory=True,
    ),
    Edit(
        "rows-of-the-table-repeated-as-a-whole",
        ENGINE + "sparse_attention:rows_of_tokens",
        "batch.decode.block_table.repeat_interleave(batch.decode.query_len, dim=0)",
        "batch.decode.block_table.repeat(batch.decode.query_len, 1)",
        memory=True,
    ),
    Edit(
        "drafts-see-each-other",
        ENGINE + "sparse_attention:rows_of_tokens",
        "torch.arange(1 - batch.decode.query_len, 1, device=batch.positions.device)",
        "torch.zeros(batch.decode.query_len, dtype=torch.int64)",
    ),
    Edit(
        "drafts-in-the-order-of-the-batch",
        ENGINE + "runner:ModelRunner.run",
        "self.draft_logits = in_order(self.draft_logits, ordered, step.scheduled)",
        "pass",
        # The same function copies the drafts out of the graph's pool.
        memory=True,
    ),
    Edit(
        "adapter-switched-for-others",
        ENGINE + "changes:apply_change",
        "if sequence.slot == 1",
        "if sequence.slot != 1",
    ),
    Edit(
        "cached-pages-handed-back",
        ENGINE + "schedule.block_pool:BlockPool.free",
        "if block not in self._prefix_of:",
        "if True:",
        memory=True,
    ),
    Edit(
        "one-owner-of-a-shared-page",
        ENGINE + "schedule.block_pool:BlockPool.share",
        "self._num_owners.get(block, 0) + 1",
        "1",
        memory=True,
    ),
    Edit(
        "context-without-its-scale",
        ENGINE + "attention:_gather",
        "(1.0 if kv_scale is None else kv_scale)",
        "1.0",
    ),
    Edit(
        "one-key-before-the-window",
        ENGINE + "attention:PagedWindowMLA._prefill",
        "max(request.context_len - self._window + 1, 0)",
        "max(request.context_len - self._window, 0)",
        memory=True,
    ),
)

UNSEEN_RIGHT = (
    Edit(
        # Written as a wrong one. Each position is still in the part of one rank.
        "ranks-by-place-in-the-chunk",
        ENGINE + "attention:split_among_ranks",
        "span.start + (rank - span.start) % num_ranks",
        "span.start + rank",
    ),
    Edit(
        "drafts-of-the-oldest-match",
        ENGINE + "speculation:SuffixDrafts._continuation",
        "reversed(self._histories.values())",
        "self._histories.values()",
    ),
    Edit(
        "freed-pages-given-first",
        ENGINE + "schedule.block_pool:BlockPool.free",
        "self._free.append(block)",
        "self._free.appendleft(block)",
    ),
    Edit(
        "two-tokens-of-context-at-least",
        ENGINE + "attention:context_chunks",
        "max(context_chunk // num_with_context, 1)",
        "max(context_chunk // num_with_context, 2)",
    ),
    Edit(
        "experts-of-the-last-rank-first",
        ENGINE + "experts:RoutedExperts._apply",
        "enumerate(self.ranks)",
        "reversed(list(enumerate(self.ranks)))",
    ),
    Edit(
        "one-request-of-prefill-at-a-time",
        SCHEDULER + "_schedule_waiting",
        "budget > 0 and len(self.running)",
        "budget > 0 and not scheduled and len(self.running)",
    ),
)
