"""Puts what a run has learned into a model's folder: ship.py RUN MODEL. In bf16, but for what diffusers keeps in f32; configs without where they came from."""
import json, sys
from pathlib import Path
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

RUN, MODEL = map(Path, sys.argv[1:])
PARTS = {"transformer": ("diffusion_pytorch_model.safetensors", WanTransformer3DModel._keep_in_fp32_modules), "text_encoder": ("model.safetensors", [])}
for part, (name, kept) in PARTS.items():
    (MODEL / part).mkdir(parents=True, exist_ok=True)
    tensors = load_file(RUN / part / name)
    short = {key: value if any(module in key.split(".") for module in kept) else value.to(torch.bfloat16) for key, value in tensors.items()}
    save_file(short, MODEL / part / name, metadata={"format": "pt"}); (MODEL / part / name).chmod(0o644)
    config = json.loads((RUN / part / "config.json").read_text())
    config.pop("_name_or_path", None)
    if "dtype" in config: config["dtype"] = "bfloat16"
    (MODEL / part / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
