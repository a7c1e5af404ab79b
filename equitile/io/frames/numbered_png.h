// Names of numbered pictures: frames/%05d.png.
#pragma once

#include <cstdint>
#include <filesystem>

namespace equitile {

// The last part of the name is text, %d or %0Nd with N up to 9, text, .png
// in letters of any case.
bool IsNumberedPng(const std::filesystem::path& path);

// The name of picture `number`.
std::filesystem::path NumberedPng(const std::filesystem::path& path, int64_t number);

// Takes away picture `number` and those that follow it without a gap.
void RemoveNumberedFrom(const std::filesystem::path& path, int64_t number);

}  // namespace equitile
