// What the recipe says about arithmetic: f32, or integers in the parts of a model where they pay.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "equitile/generate/field_type.h"
#include "equitile/generate/recipe.h"
#include "equitile/kernel/compute.h"
#include "equitile/kernel/linear/weight_type.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/model/wan/wan_weights.h"
#include "equitile/tensor/dtype.h"

namespace equitile {

struct ComputeChoice {
  Compute attention = Compute::kF32;  // self-attention and cross-attention
  Compute linear = Compute::kF32;     // the linear layers of the transformer's blocks
  Compute vae = Compute::kF32;        // or int16: the convolutions behind a norm
  Compute text = Compute::kF32;       // the text encoder

  friend bool operator==(const ComputeChoice&, const ComputeChoice&) = default;
};

// "int16", "int8", "attention=int16,linear=int8", "int8,text=f32": a word for all parts, then parts
// by name; parts alone leave the others as they are `under` them. "int8" leaves the VAE and the
// text encoder at int16: pictures show the error of the one, and the other's time hardly counts.
// Throws InputError for what is not known and for what a part cannot do.
ComputeChoice ParseComputeChoice(std::string_view text, ComputeChoice under = {});

// The one way to write it: "f32", or every part by name.
std::string ComputeChoiceText(const ComputeChoice& choice);

FieldType ComputeType();
ComputeChoice ComputeOf(const Recipe& recipe);

// The weights of integers, as the arithmetic has them.
WeightType IntegerWeights(Compute compute);

// How the transformer's matrices are stored, `weights` being what was asked for or chosen: some
// stay int16 where linear layers compute in int8, as the recipe has found (WanWeights::StayInt16).
WanWeightTypes WeightTypesOf(const Recipe& recipe, WeightType weights);
// As the recipe holds their names: with commas, or "none".
std::string Int16LayersText(const std::vector<std::string>& names);
// "2 of 42 layers stay int16: blocks.0.ffn.net.2, blocks.3.attn1.to_q"; "" where none does.
std::string StayInt16Text(const Recipe& recipe, const WanConfig& model);

// Throws InputError where --weights or --wire is given beside an arithmetic that says something
// else.
void CheckComputeFits(const Recipe& recipe);

// What travels between ranks: integers as attention computes in them, whatever a record says; else
// the recipe's word, or f32 where that was of another arithmetic.
void SettleWire(Recipe& recipe);
// The type of numbers on the wire; integers are no numbers any more.
DType WireOf(const Recipe& recipe);

}  // namespace equitile
