#include "equitile/search/judge/choice_record.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "equitile/search/state/checkpoint_numbers.h"

namespace equitile {
namespace {

constexpr std::pair<const char*, VideosMade ChoiceRecord::*> kVideos[] = {
    {"choosing", &ChoiceRecord::choosing},
    {"validation", &ChoiceRecord::validation},
    {"other_size", &ChoiceRecord::other_size}};

std::string PrefixOf(const char* videos, uint64_t file) {
  return fmt::format("choice.{}.{}.", videos, file);
}

}  // namespace

void VideosMade::Begin(uint64_t of_key) {
  if (key != of_key) results.clear();
  key = of_key;
}

void ChoiceRecord::AddTo(SourceState& parts) const {
  PutNumbers(candidate_errors, parts["choice.candidate_errors"]);
  std::vector<double> curves;  // [layers][velocity error, densities]
  for (const LayerCurve& layer : layers) {
    curves.push_back(layer.velocity_error);
    curves.insert(curves.end(), layer.densities.begin(), layer.densities.end());
  }
  PutNumbers(curves, parts["choice.layers"]);
  PutNumbers(std::array{search_seconds}, parts["choice.seconds"]);
  std::vector<uint64_t> keys = {candidates_key};  // and {key, files} of all videos
  for (const auto& [name, videos] : kVideos) {
    const VideosMade& made = this->*videos;
    keys.push_back(made.key);
    keys.push_back(made.results.size());
    for (size_t i = 0; i < made.results.size(); ++i)
      made.results[i].AddTo(parts, PrefixOf(name, i));
  }
  PutNumbers(keys, parts["choice.keys"]);
}

void ChoiceRecord::Restore(const SourceState& parts) {
  candidate_errors = TakeNumbers<double>(parts, "choice.candidate_errors");
  const auto curves = TakeNumbers<double>(parts, "choice.layers");
  constexpr size_t kNumbers = 1 + kTriedErrors.size();
  layers.clear();
  for (size_t i = 0; i + kNumbers <= curves.size(); i += kNumbers) {
    const double* at = curves.data() + i;
    layers.push_back({.velocity_error = *at, .densities = {at + 1, at + kNumbers}});
  }
  search_seconds = TakeNumbers<double>(parts, "choice.seconds", 1)[0];
  const auto keys = TakeNumbers<uint64_t>(parts, "choice.keys", 1 + 2 * std::size(kVideos));
  candidates_key = keys[0];
  const uint64_t* next = keys.data() + 1;
  for (const auto& [name, videos] : kVideos) {
    VideosMade& made = this->*videos;
    made.key = *next++;
    made.results.clear();
    for (uint64_t file = 0, files = *next++; file < files; ++file)
      made.results.push_back(ValidationResult::From(parts, PrefixOf(name, file)));
  }
}

}  // namespace equitile
