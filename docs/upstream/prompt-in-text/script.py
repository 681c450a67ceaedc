"""The text of an answer begins with its prompt, if the prompt ends inside a character.

Needs `tokenizers` alone, 0.22 or newer; vLLM's FastIncrementalDetokenizer makes the same stream.

    python script.py TOKENIZER.json
"""

import sys

import tokenizers
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

tokenizer = Tokenizer.from_file(sys.argv[1])
answer = tokenizer.encode('{"flag"', add_special_tokens=False).ids
whole = tokenizer.encode("a prompt ü", add_special_tokens=False).ids
print(f"tokenizers {tokenizers.__version__}")
for what, prompt in (("a whole character", whole), ("half of a character", whole[:-1])):
    stream = DecodeStream(ids=prompt, skip_special_tokens=True)
    text = "".join(stream.step(tokenizer, token) or "" for token in answer)
    mark = "" if text == tokenizer.decode(answer) else "   BUG"
    print(f"the prompt ends in {what}: {tokenizer.decode(prompt)!r}; the answer: {text!r}{mark}")
