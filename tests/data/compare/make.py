"""Makes the pictures here and what scikit-image 0.26 says about them."""
import json
import pathlib

import numpy as np
from skimage.io import imsave
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

rng = np.random.default_rng(5)
out = pathlib.Path(__file__).resolve().parent
expected = []
H, W = 37, 53
yy, xx = np.mgrid[0:H, 0:W]
for f in range(4):
    base = np.stack([127 + 100*np.sin(xx/7 + f), 127 + 100*np.cos(yy/5 - f), (xx*yy + 20*f) % 256], -1)
    a = np.clip(base, 0, 255).astype(np.uint8)
    noise = [rng.normal(0, 12, base.shape), 30*(xx > 20)[..., None]*np.ones(3), np.zeros(base.shape), rng.normal(0, 80, base.shape)][f]
    b = np.clip(a + noise, 0, 255).astype(np.uint8)
    for n, im in (("a", a), ("b", b)):
        (out/n).mkdir(parents=True, exist_ok=True)
        imsave(out/n/f"{f:05d}.png", im, check_contrast=False)
    s = structural_similarity(a, b, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255, channel_axis=-1)
    p = None if (a == b).all() else float(peak_signal_noise_ratio(a, b, data_range=255))
    expected.append({"frame": f, "psnr": p, "ssim": float(s)})
(out/"expected.json").write_text(json.dumps(expected, indent=1) + "\n")
