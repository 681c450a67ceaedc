"""The edits, each of the text of one function.

They were written when the faults of `harness/engine/faults.yaml` were, and of other kinds than
these: masks, aliases, borders of a split, copies that a graph misses, what an accepted draft gives.
Nobody tuned a case for one of them. An edit that is caught stays, and so does one that is not.
"""

from __future__ import annotations

from trust.edits.edit import ENGINE, Edit

WRONG = (
    Edit(
        "state-of-a-page-in-part",
        ENGINE + "schedule.scheduler:Scheduler._keep_states",
        "pages = sequence.num_computed_tokens // PAGE_SIZE",
        "pages = -(-sequence.num_computed_tokens // PAGE_SIZE)",
    ),
    Edit(
        "window-one-short",
        ENGINE + "attention:PagedWindowMLA._prefill",
        "keys <= positions[:, None] - self._window",
        "keys < positions[:, None] - self._window",
    ),
    Edit(
        "state-cleared-by-row",
        ENGINE + "linear_attention:PagedKDA._prefill",
        "if request.context_len == 0:",
        "if request.start == 0:",
        memory=True,
    ),
    Edit(
        "state-before-is-an-alias",
        ENGINE + "linear_attention:update_states",
        "ssm_before = ssm_rows.clone()",
        "ssm_before = ssm_rows",
        memory=True,
    ),
    Edit(
        "positions-of-the-chunk",
        ENGINE + "batch:build",
        "positions += span",
        "positions += range(len(span))",
    ),
    Edit(
        "positions-not-copied",
        ENGINE + "batch:fill_static",
        "static.positions[:rows] = live.positions",
        "pass",
        memory=True,
    ),
    Edit(
        "states-of-padding-not-reset",
        ENGINE + "batch:pad_requests",
        "decode.state_blocks[num_live:] = NULL_BLOCK",
        "pass",
        memory=True,
    ),
    Edit(
        "page-in-part-behind-the-window",
        ENGINE + "schedule.scheduler:Scheduler._evict",
        "first_visible(sequence, self.window) // PAGE_SIZE",
        "-(-first_visible(sequence, self.window) // PAGE_SIZE)",
        memory=True,
    ),
    Edit(
        "more-tokens-than-asked-for",
        ENGINE + "engine:ReferenceEngine._advance",
        "given = given[: sequence.max_tokens - sequence.num_generated_tokens]",
        "pass",
    ),
    Edit(
        "rows-by-new-tokens",
        ENGINE + "engine:ReferenceEngine._sample",
        "count = item.num_rows",
        "count = item.num_new_tokens",
    ),
    Edit(
        "token-of-the-wrong-draft",
        ENGINE + "speculation:confirmed",
        "if draft != given[-1]:\n            break\n        given.append(token)",
        "given.append(token)\n        if draft != given[-2]:\n            break",
    ),
    Edit(
        "rows-left-in-the-order-of-the-batch",
        ENGINE + "runner:in_order",
        "for item in wanted",
        "for item in ordered",
    ),
    Edit(
        "no-graph-for-the-largest-batch",
        ENGINE + "capture:reachable_sizes",
        "len(needed) + 1",
        "max(len(needed), 1)",
    ),
    Edit(
        "first-expert-of-the-next-rank",
        ENGINE + "experts:ids_of_rank",
        "ids >= first + count",
        "ids > first + count",
        memory=True,
    ),
    Edit(
        "block-with-two-prefixes",
        ENGINE + "schedule.block_pool:BlockPool.cache",
        " and block not in self._prefix_of",
        "",
    ),
    Edit(
        "adapter-of-the-first-prompt",
        ENGINE + "attention:slots_of_prompts",
        "[request.adapter for request, (start, end) in pairs",
        "[requests[0].adapter for _, (start, end) in pairs",
    ),
    Edit(
        "index-keys-of-padding-stored",
        ENGINE + "sparse_attention:store_index_keys",
        "torch.where(is_stored[:, None], keys, cache[block, offset])",
        "keys",
        memory=True,
    ),
    Edit(
        "drafts-verified-in-part",
        ENGINE + "schedule.scheduler:Scheduler._schedule_running",
        "if sequence.drafts and num_new_tokens < sequence.query_len:",
        "if sequence.drafts and num_new_tokens < 1:",
    ),
    Edit(
        "slot-in-the-chunk",
        ENGINE + "attention:gather_context",
        "position % PAGE_SIZE for span in chunk for position in span",
        "(position - span.start) % PAGE_SIZE for span in chunk for position in span",
        memory=True,
    ),
    Edit(
        "last-row-of-each-chunk-only",
        ENGINE + "batch:logit_rows",
        "range(end - item.num_rows, end)",
        "[end - 1] * item.num_rows",
    ),
    Edit(
        "drafts-copied-in-the-order-of-the-batch",
        ENGINE + "runner:ModelRunner.run",
        "in_order(self.draft_logits, ordered, step.scheduled)",
        "self.draft_logits.clone()",
    ),
)

RIGHT = (
    Edit(
        # Tokens with context are the first ones in each round, so the count holds in all of them.
        "count-of-first-round-in-all",
        ENGINE + "attention:PagedMLA._prefill",
        "with_context = None",
        "pass",
    ),
    Edit(
        "share-of-all-prompts",
        ENGINE + "attention:context_chunks",
        "context_chunk // num_with_context",
        "context_chunk // len(lengths)",
    ),
    Edit(
        "prompts-padded-to-the-longest",
        ENGINE + "attention:causal_attention",
        "if q.is_cuda and len(spans) > 1:",
        "if len(spans) > 1:",
    ),
    Edit(
        "equal-contexts-in-reverse",
        ENGINE + "batch:prompts_in_order",
        "key=lambda item: -item.sequence.num_computed_tokens",
        "key=lambda item: (-item.sequence.num_computed_tokens, -item.sequence.request)",
    ),
    Edit(
        "ranks-in-reverse",
        ENGINE + "attention:split_among_ranks",
        "for rank in range(num_ranks)",
        "for rank in reversed(range(num_ranks))",
    ),
    Edit(
        "largest-by-max",
        ENGINE + "speculation:greedy_tokens",
        "logits.argmax(dim=-1)",
        "logits.max(dim=-1).indices",
    ),
    Edit(
        "one-new-prompt-a-step",
        ENGINE + "schedule.scheduler:Scheduler._schedule_waiting",
        "while self.waiting and budget > 0",
        "before = len(self.running)\n"
        "    while self.waiting and len(self.running) == before and budget > 0",
    ),
    Edit(
        "hidden-by-copy",
        ENGINE + "batch:fill_static",
        "static.hidden[:rows] = live.hidden",
        "static.hidden[:rows].copy_(live.hidden)",
    ),
    Edit(
        "prompts-from-the-end",
        ENGINE + "sparse_attention:join_rows",
        "selected[n:] = prompts",
        "selected[-len(prompts) :] = prompts",
    ),
    Edit(
        "state-kept-if-two-are-free",
        ENGINE + "schedule.block_pool:BlockPool.keep_state",
        "if not self._free or",
        "if len(self._free) < 2 or",
    ),
    Edit(
        "graph-of-the-next-size",
        ENGINE + "runner:ModelRunner._graph_size",
        "next((size for size in self._graphs.sizes if size >= batch.num_decodes), None)",
        "max((size for size in self._graphs.sizes if size >= batch.num_decodes), default=None)",
    ),
)
