"""Makes vae_tiled.safetensors: what diffusers 0.42.1 decodes in tiles from tests/golden/tiny-wan. Tiles of 32 pixels, 16 and 24
apart, over 7 x 6 and 5 x 9 latents."""
import pathlib

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file

here = pathlib.Path(__file__).resolve().parent
torch.set_grad_enabled(False)
torch.set_num_threads(1)
vae = AutoencoderKLWan.from_pretrained(here / "../golden/tiny-wan/vae").eval()
mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
scale = 1.0 / torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
tensors = {}
for stride, shape in ((16, (2, 7, 6)), (24, (1, 5, 9))):
    vae.enable_tiling(tile_sample_min_height=32, tile_sample_min_width=32, tile_sample_stride_height=stride,
                      tile_sample_stride_width=stride)
    latent = torch.randn((16, *shape), generator=torch.Generator().manual_seed(stride))
    frames = vae.decode(latent[None] / scale + mean, return_dict=False)[0][0]
    tensors[f"stride{stride}.latent"] = latent
    tensors[f"stride{stride}.frames"] = frames.contiguous()
save_file(tensors, here / "vae_tiled.safetensors")
