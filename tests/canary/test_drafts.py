"""canary-mtp and canary-eagle: their drafts are the target's tokens, and only a right drafter makes
them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from canaries import construct_eagle, construct_mtp, drafts, recall
from canaries.tokenizer import EOS_TOKEN_ID
from harness.core.files import FIXTURES, TASKS

CANARY, EAGLE = FIXTURES / "canary-mtp", FIXTURES / "canary-eagle"


def test_a_prompt_has_each_record_of_the_answer_once_and_its_words_have_their_signs() -> None:
    known, tokenizer = drafts.words(), recall.tokenizer(drafts.words())
    for length, question in zip(drafts.LENGTHS, drafts.questions(), strict=True):
        tokens, answer = (
            tokenizer.encode(question.prompt).ids,
            tokenizer.encode(question.completion).ids,
        )
        assert (
            len(tokens) == length
            and len(answer) == drafts.HOPS
            and known.index("<|pad|>") not in tokens
        )
        for key, value in zip([known.index(recall.FIRST), *answer], answer, strict=False):
            assert [tokens[place + 1] for place in range(length) if tokens[place] == key].count(
                value
            ) == 1
        signs = [(token - recall.COLD) % recall.FAMILY % drafts.SIGNS for token in answer[:-1]]
        assert signs == [hop % drafts.SIGNS for hop in range(1, drafts.HOPS)]


def test_the_stored_questions_and_weights_are_those_of_the_modules(tmp_path: Path) -> None:
    drafts.write(tmp_path / "questions.jsonl")
    assert (tmp_path / "questions.jsonl").read_text() == (
        TASKS / "data" / "drafts.jsonl"
    ).read_text()
    for folder, module in ((CANARY, construct_mtp), (EAGLE, construct_eagle)):
        stored, made = load_file(folder / "model.safetensors"), module.weights()
        assert stored.keys() == made.keys()
        assert json.loads((folder / "config.json").read_text()) == module.CONFIG
        for name, weight in stored.items():
            torch.testing.assert_close(weight.float(), made[name], rtol=2**-7, atol=1e-4)


def test_after_an_end_comes_the_end_of_the_sequence_and_so_on() -> None:
    weights = construct_mtp.weights()
    head = weights["lm_head.weight"] @ weights["model.embed_tokens.weight"].T
    assert set(head[:, [EOS_TOKEN_ID, *range(6, recall.HOT)]].argmax(0).tolist()) == {EOS_TOKEN_ID}


@pytest.mark.nightly
@pytest.mark.parametrize("eagle", [None, EAGLE], ids=["module", "eagle"])
def test_only_a_right_drafter_has_its_drafts_accepted(eagle: Path | None) -> None:
    pytest.importorskip("transformers")
    from canaries import drafts_check

    torch.set_num_threads(1)
    questions, drafter = drafts.questions()[:2], drafts_check.Drafter(CANARY, eagle=eagle)
    for change in drafts_check.CHANGES.values():
        right, drafted, accepted = drafts_check.measured(drafter, questions, 3, change)
        assert (right, drafted) == (2, 2 * drafts.HOPS * 3)
        assert accepted == drafted if change in ("", "first") else accepted < drafted / 2
