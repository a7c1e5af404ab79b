"""What `equitile search` finds for the tables: made once per program, and kept."""
import dataclasses
import os
import threading

import runs

CALIBRATION = runs.MINI / "prompts.txt"
LOCKS = {}  # of files: rows may be made side by side


def once(program, path, *flags):
    """The path of what a search with these flags writes, whole or not at all: a pattern file, or a folder of masks."""
    with LOCKS.setdefault(path, threading.Lock()):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            half = path.with_name(f"new-{path.name}")
            program.run("search", *flags, "-o", half)
            os.replace(half, path)
    return path


@dataclasses.dataclass(frozen=True)
class Search:
    """One objective and its dials, as in epsilon=0.5,lambda=0.1."""
    objective: str
    dials: str
    prompts: int  # to calibrate on

    @property
    def kind(self):
        """What `--attention` calls its file."""
        return "pattern" if self.objective in ("paper", "relative") else self.objective

    def flags(self):
        dials = [f"--{dial}" for dial in self.dials.split(",")]
        return ["--prompts", CALIBRATION, "--count", self.prompts, "--objective", self.objective, *dials]

    def attention(self, program, video):
        """`--attention` by what is found for videos of these flags."""
        folder = runs.KEPT / f"searched-{runs.digest([program.path])}"
        size = "-".join(str(word) for word in video if isinstance(word, int))
        dials = self.dials.replace("=", "-").replace(",", "-")  # a path with = or , in it would be read as dials
        name = f"{size}-{self.prompts}-{self.objective}-{dials}{'.json' if self.kind == 'pattern' else ''}"
        return ["--attention", f"{self.kind}:{once(program, folder / name, *video, *self.flags())}"]
