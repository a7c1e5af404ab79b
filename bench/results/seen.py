"""What is seen in videos of the small model: how well shape, colour and motion are those of the prompt, as models/wan-mini/training/judge.py
scores frames. Apart, since it needs pillow, which nothing else of the tables does."""
import functools
import re
import sys

import runs

TRAINING = runs.MINI / "training"
sys.path.append(str(TRAINING))
import synth  # noqa: E402

SCORES = ("shape", "colour", "motion")  # overlap with the ideal shape; 1 where colour, and motion, are right
WORDS = {"color": synth.COLORS, "shape": synth.SHAPES, "motion": synth.MOTIONS, "bg": synth.BACKGROUNDS}
CAPTION = re.compile("a (?:(?:{}) )?{color} {shape} {motion} on a {bg} background".format(
    "|".join(filter(None, synth.SIZES)), **{name: f"(?P<{name}>{'|'.join(words)})" for name, words in WORDS.items()}))


@functools.cache
def judging():
    """The judge; None, said once, where this Python has no pillow."""
    try:
        import judge
        return judge
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        runs.say(f"{sys.executable} has no pillow (python3-pil): what is seen in videos is left out")
        return None


def identity():
    """What scores depend on beside the frames; None where there are none."""
    return judging() and f"{runs.digest([TRAINING / 'judge.py', TRAINING / 'synth.py'])}, light {synth.LIGHT}"


def asked(prompt):
    """{color, shape, motion, bg} of a caption of one object; None for two, and for other words."""
    found = CAPTION.fullmatch(prompt)
    return found and found.groupdict()


def scores(folder, prompt):
    """By SCORES, of a folder of frames; None where the judge does not know what to look for."""
    spec, judge = asked(prompt), judging()
    return spec and dict(zip(SCORES, map(float, judge.judge(judge.load(str(folder)), spec)), strict=True))
