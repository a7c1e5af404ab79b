// Where the parts of an itinerary lie in a rank's few buffers: the second half of MakeItinerary,
// after the lists of what moves. Internal to the room.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/exec/itinerary.h"

namespace equitile {

// Strips of a lane at the end of a list of runs.
void AddStrips(std::vector<StripRun>& runs, int64_t lane, Range strips);

// Runs one after the other from byte `at` on; where they end.
int64_t PlaceRuns(std::vector<StripRun>& runs, int64_t strip_bytes, int64_t at = 0);

// Fills in every place and what is packed, copied and held where, from the lists.
void PlaceItinerary(Itinerary& itinerary);

}  // namespace equitile
