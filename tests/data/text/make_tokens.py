"""Writes tokens.json: awkward texts with the ids of the tokenizers library for tokenizer.json of tests/golden/tiny-wan, as it
stands and as transformers 5 rebuilds it: [text, ids, ids]. Made with tokenizers 0.23.3, transformers 5.22.2."""
import json
import pathlib
import random

import tokenizers
import transformers

HERE = pathlib.Path(__file__).parent
FOLDER = HERE.parent.parent / "golden" / "tiny-wan" / "tokenizer"
PARTS = ("a red circle moves left on a black background café ½ ½\u0301 ﬁ ＡＢ，ｶﾞ 한글 é e\u0301 🦊 👩‍🚀 🇩🇪 一只狐狸 привет ① ™ ㍿ ﷺ "
         "</s> <extra_id_3> <pad> <0x41> <s> <unk> ▁ ▁a \u200d \u0301 \u0600 \u0600ﬁ ©\u200d® Å … À\u0301 \u00a0 ﷽").split(" ")
GLUE = [" ", " ", " ", "", "  ", "\t", "\n", "\u3000", "▁", " \r\n"]
rng = random.Random(2)


def text():
    kind = rng.random()
    if kind < 0.8:
        return "".join(rng.choice(PARTS) + rng.choice(GLUE) for _ in range(rng.randrange(1, 9)))
    return "".join(chr(rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x300, 0x370), rng.randrange(0xF900, 0xFFFE),
                                   rng.randrange(0x2000, 0x3400)])) for _ in range(rng.randrange(1, 12)))


def main(count=400, path=HERE / "tokens.json"):
    as_it_stands = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    rebuilt = transformers.AutoTokenizer.from_pretrained(FOLDER)
    cases = [[t, as_it_stands.encode(t).ids, rebuilt(t).input_ids] for t in sorted({text() for _ in range(count)})]
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
