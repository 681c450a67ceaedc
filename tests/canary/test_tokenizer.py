from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from canaries import tokenizer

TEXTS = ["The total is 1234 + 99 = 1333 apples.", "So €57/hour, not 12 students' 100%\n#### 70"]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return tokenizer.train(TEXTS * 20, vocab_size=400)


@pytest.mark.parametrize("text", [*TEXTS, " 0012 -7", "été ÷ 😀\n\n  x"])
def test_text_comes_back_as_it_was(trained: Tokenizer, text: str) -> None:
    assert trained.decode(trained.encode(text).ids) == text


def test_every_digit_is_a_token_of_its_own(trained: Tokenizer) -> None:
    assert [
        t for t in trained.encode("1333 and 0070").tokens if any(c.isdigit() for c in t)
    ] == list("13330070")


def test_the_end_and_padding_tokens_have_the_fixed_ids(trained: Tokenizer) -> None:
    assert trained.token_to_id(tokenizer.EOS_TOKEN) == tokenizer.EOS_TOKEN_ID
    assert trained.token_to_id(tokenizer.PAD_TOKEN) == tokenizer.PAD_TOKEN_ID


def test_the_same_text_trains_the_same_tokenizer(trained: Tokenizer) -> None:
    assert tokenizer.train(TEXTS * 20, vocab_size=400).to_str() == trained.to_str()


def test_a_saved_tokenizer_loads_and_adds_nothing_to_a_prompt(
    trained: Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save(trained, tmp_path)
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert loaded.encode(TEXTS[0]).ids == trained.encode(TEXTS[0]).ids
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["eos_token"], config["add_bos_token"]) == (tokenizer.EOS_TOKEN, False)
