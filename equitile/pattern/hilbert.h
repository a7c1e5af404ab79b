// A Hilbert curve through a box of any size: apart from the other orders because it is the only one
// that is not a nest of loops.
#pragma once

#include <cstdint>
#include <vector>

namespace equitile {

// [frames * height * width]: the cells, numbered with the width fastest, in the order in which the
// curve meets them. Every cell once, and every step goes to a neighbour along one axis, whatever
// the sizes: consecutive cells stay close together on all three axes.
//
// The idea is that of generalised Hilbert curves (Jakub Červený's gilbert): a box is walked from
// one corner to the other end of one edge, in two, three or five smaller boxes that are walked
// alike. Colour cells as a chess board: such a walk exists only if that edge is even or all three
// are odd. Here every cut keeps to that, so that no diagonal step is ever needed; where all three
// are odd, five boxes cannot, and three are taken.
std::vector<int32_t> HilbertCells(int64_t frames, int64_t height, int64_t width);

}  // namespace equitile
