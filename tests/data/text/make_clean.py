"""Writes clean.json: prompts and what diffusers' prompt_clean makes of them (ftfy 6.3.1), as pairs. Words, references,
controls and broken encodings are mixed at random; a case where ftfy used an encoding other than Latin-1 and Windows-1252 is
left out, since equitile repairs only those two."""
import html
import json
import pathlib
import random

import ftfy
import ftfy.chardata
import regex

WORDS = ("the fox café déjà vu naïve über größe 東京 一只红 привет Γειά “quote” it’s – — … €5 ½ ° © ™ 👩‍🚀 ﬁne ĳ ŉ ǆ ＡＢ，ｶﾞ "
         "한글 ñandú Ærø Å Øl às là mode São coração").split()
REFERENCES = ("&amp; &lt; &gt &amp &ampx &EACUTE; &eacute; &#39; &#x27; &#128; &#0; &#xD800; &#9999999999; &nbsp; &NBSP; &SZLIG; "
              "&notit; &fjlig; &FJLIG; &#59; &#12ab; &; &#; &amp;amp;lt; &GTDOT; &Acirc; &hellip; &AMP;&NTILDE;").split()
CONTROLS = ["\x00", "\x07", "\x0b", "\x1b[31m", "\x1b[0;1mX", "\x1b[", "\r\n", "\r", "\u2028", "\u2029", "\x85", "\x1c",
            "\ufeff", "\ufffc", "\u3000", "\u200b", "\xa0", "\t", "\n", "  ", "<b>", "\ufffd", "\x1a", "\x81", "\x9d",
            "e\u0301", "\u0301", "a\u0323\u0302", "\uac00\u11a8", "\u1100\u1161", "\uff9e", "\u212b", "\u0958", "\uffe3"]
LATIN = [chr(i) for i in range(0xA0, 0x100)] + list(bytes(range(0x80, 0xA0)).decode("cp1252", "ignore")) + list("abAZ .1")
RANGES = [(0x20, 0x250), (0x300, 0x370), (0x370, 0x3000), (0xF900, 0xFFFE), (0x10000, 0x1F9FF), (0xAC00, 0xD7A4), (0x1100, 0x1200)]
rng = random.Random(1)


def prompt_clean(text):
    text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    return regex.sub(r"\s+", " ", text).strip()


def broken(text):
    for _ in range(rng.choice([1, 1, 1, 2])):
        text = text.encode().decode(rng.choice(["latin-1", "sloppy-windows-1252"]))
        if rng.random() < 0.2:
            text = text.replace("\xa0", " ")
        if rng.random() < 0.1:
            text = text.replace("\x9d", "\ufffd").replace("\x81", "\ufffd")
    return text


def part(kind):
    if kind == 0:
        return rng.choice(WORDS)
    if kind == 1:
        return rng.choice(rng.choice([WORDS, REFERENCES, CONTROLS]))
    if kind == 2:
        return broken(rng.choice(WORDS))
    if kind == 3:
        return rng.choice([rng.choice(WORDS), broken(rng.choice(WORDS)), rng.choice(CONTROLS + REFERENCES)])
    if kind == 4:
        return "".join(rng.choices(LATIN, k=rng.randrange(1, 6)))
    return "".join(chr(rng.randrange(*rng.choice(RANGES))) for _ in range(rng.randrange(1, 6)))


def main():
    prompts = set()
    while len(prompts) < 600:
        kind = len(prompts) % 6
        prompts.add(rng.choice([" ", " ", ""]).join(part(kind) for _ in range(rng.randrange(1, 8))))
    prompts = sorted(prompts)
    all_encodings = [prompt_clean(prompt) for prompt in prompts]
    ftfy.chardata.CHARMAP_ENCODINGS[:] = ["latin-1", "sloppy-windows-1252"]
    cases = [[p, c] for p, c in zip(prompts, all_encodings) if prompt_clean(p) == c]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (pathlib.Path(__file__).parent / "clean.json").write_text(f"[\n{lines}\n]\n")


main()
