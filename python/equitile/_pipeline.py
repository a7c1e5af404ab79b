"""From a prompt to frames."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from typing import Any, Callable, NamedTuple

import numpy as np

from . import _core
from ._picture_files import write_gif, write_pngs

# As other programs call them.
ALIASES = {"num_frames": "video_frames", "frames": "video_frames", "num_inference_steps": "steps", "guidance_scale": "cfg_scale"}


class Step(NamedTuple):
    """What a callback hears after each denoising step."""

    done: int
    steps: int
    seconds: float  # of this step
    skipped: bool  # by `cache`: the transformer did not run


class Video(NamedTuple):
    frames: np.ndarray  # uint8 [frames, height, width, 3]
    latents: np.ndarray  # float32 [channels, frames, height, width]
    recipe: dict[str, Any]  # everything that decides its bits: `parameters` of a sidecar of the command

    def save(self, path: str | os.PathLike) -> None:
        """Writes a .gif, a picture per frame (frames/%05d.png), a single frame as .png, the frames as .npy, or with the program
        ffmpeg a video (.mp4, .webm, …)."""
        path = os.fspath(path)
        if path.endswith(".npy"):
            return np.save(path, self.frames)
        if path.endswith(".png"):
            return write_pngs(path, self.frames)
        if path.endswith(".gif"):
            return write_gif(path, self.frames, self.recipe["fps"])
        program = shutil.which("ffmpeg")
        if program is None:
            raise RuntimeError(f"{path}: needs the program ffmpeg; without it use .gif, frames/%05d.png or .npy")
        _, height, width, _ = self.frames.shape
        command = [program, "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
                   "-r", str(self.recipe["fps"]), "-i", "-"]
        done = subprocess.run([*command, "-pix_fmt", "yuv420p", path], input=self.frames.tobytes(), stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{path}: ffmpeg: {done.stderr.decode(errors='replace').strip()}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)


class Pipeline:
    """A checkpoint folder as diffusers saves it, ready to make videos: the same bits as `equitile generate` with the same settings.

    >>> video = equitile.Pipeline("models/wan-mini").generate("a red circle moves right", seed=7)   # doctest: +SKIP
    >>> video.frames.shape                                                                            # doctest: +SKIP
    (49, 256, 256, 3)

    Weights stay in memory from one video to the next. threads: 0 means all cores allowed. One video at a time; a process forked
    after use gets threads of its own.
    """

    def __init__(self, model: str | os.PathLike, threads: int = 0) -> None:
        self._model = os.fspath(model)
        self._pipeline = _core.Pipeline(self._model, threads)

    def generate(self, prompt: str, *, callback: Callable[[Step], Any] | None = None, **settings: Any) -> Video:
        """Makes one video. What may be set, and how it is written, are the flags of `equitile generate`: seed, steps, attention,
        width, height, video_frames, cfg_scale, … (`Pipeline.settings()` lists them; None: the default).

        callback gets a Step after each one; what it raises ends the run, and so does Ctrl-C. Raises ValueError for what cannot be used.
        """
        known = self.settings()
        texts = {"prompt": prompt}
        for name, value in settings.items():
            key = ALIASES.get(name, name)
            if key not in known:
                raise TypeError(f"generate() has no setting '{name}'; it has {', '.join(known)}")
            if key in texts:
                raise TypeError(f"generate() got '{key}' twice")
            if value is not None:
                texts[key] = _text(value)
        after_step = None if callback is None else lambda *step: callback(Step(*step))
        frames, latents, recipe, remarks = self._pipeline.generate(texts, after_step)
        for remark in remarks:
            warnings.warn(remark, stacklevel=2)
        return Video(frames, latents, json.loads(recipe))

    @staticmethod
    def settings() -> dict[str, str]:
        """What generate() may be told: name -> meaning."""
        return dict(_core.recipe_keywords())

    def __repr__(self) -> str:
        return f"<equitile.Pipeline {self._model}>"
