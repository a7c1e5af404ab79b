// The sinusoid of a diffusion timestep. Its own file because its rounding is part of the model: at
// timesteps near 1000 a frequency that is one ulp off moves the result by 6e-5.
#pragma once

#include <span>

namespace equitile {

// u [2 n]: cos(t w_i) at i, sin(t w_i) at n + i, w_i = exp(-ln(10000) i / n). Every step is rounded
// to f32 in the order in which diffusers computes it: product, quotient, exponential, angle.
void TimestepSinusoid(float t, std::span<float> u);

}  // namespace equitile
