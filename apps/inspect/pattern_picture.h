// What a pattern file looks like: a map of layers and heads, a sign and a colour per mode; as text,
// as a PNG, as HTML.
#pragma once

#include <cstdint>
#include <string>

#include "apps/cli/terminal.h"
#include "equitile/io/frames/png.h"
#include "equitile/io/records/pattern_file.h"

namespace equitile {

char ModeSign(HeadMode mode);  // 'F', '-', 'D', 'M', 'S', 'o'

// One line per layer.
std::string DrawPattern(const PatternRange& range, const Terminal& terminal);
std::string DrawModeLegend(const Terminal& terminal);

// The ranges side by side, layers down, heads across, with numbers, signs and a legend; the
// stronger the colour, the denser.
RgbImage PaintPattern(const PatternFile& file);

// A page that asks the network for nothing. A cell's darkness is its density; pointing at it tells
// the rest.
std::string PatternPage(const std::string& name, const PatternFile& file);

}  // namespace equitile
